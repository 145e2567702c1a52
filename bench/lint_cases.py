"""What `stayfinite lint` sees of failing scripts before they run: is the true line among its findings, and what else?

    python bench/lint_cases.py FOLDER

The folder holds `truth.jsonl` (one JSON object a line: `id`, `kind`, `birth_lines`) and, for each id, `<id>.py` and
where there is one `<id>.fixed.py`. Bars: the true line in 60 % of the scripts, at most one other line a file at the
median; no finding on controls (kind "control"), and none on a line that a fix brought in. Failures that no source can
show (another run's state, another rank) stay in the count unless named with --unseen.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from stayfinite.findings import Finding, Severity
from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings

FOUND, OTHERS = 0.6, 1


def findings_of(path: Path) -> list[Finding]:
    return lint([str(path)], Settings()).findings


def code_of(line: str) -> str:
    return re.sub(r"\s*#.*", "", line).strip()


def on_fixed_lines(folder: Path, truth: dict[str, Any]) -> list[Finding]:
    """Findings on lines that only the fixed script has; a note is fine where it handles a bad value itself."""
    fixed = folder / f"{truth['id']}.fixed.py"
    if not fixed.is_file():
        return []
    before = {
        code_of(line) for line in (folder / f"{truth['id']}.py").read_text(encoding="utf-8").splitlines()
    }
    lines = fixed.read_text(encoding="utf-8").splitlines()
    return [
        finding
        for finding in findings_of(fixed)
        if code_of(lines[(finding.line or 1) - 1]) not in before
        and not (truth.get("fixed_handled") and finding.severity is Severity.INFO)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--unseen", default="", metavar="IDS", help="failures that no source shows, with commas"
    )
    options = parser.parse_args()
    text = (options.folder / "truth.jsonl").read_text(encoding="utf-8")
    truths = [json.loads(line) for line in text.splitlines() if line.strip()]
    unseen = {name for name in options.unseen.split(",") if name}
    found, others, false = 0, [], 0
    for truth in truths:
        script = options.folder / f"{truth['id']}.py"
        findings = findings_of(script)
        shown = ", ".join(f"{finding.code}:{finding.line}" for finding in findings) or "nothing"
        wrong = on_fixed_lines(options.folder, truth)
        false += len(wrong)
        if truth["kind"] == "control":
            false += len(findings)
            verdict = "silent" if not findings else "FALSE"
        elif truth["id"] in unseen:
            verdict = "not in the source"
        else:
            lines = {finding.line for finding in findings}
            hit = bool(lines & set(truth["birth_lines"]))
            found += hit
            others.append(len(lines - set(truth["birth_lines"])))
            verdict = "found" if hit else "missed"
        fixed = "".join(f", FALSE on the fix {finding.code}:{finding.line}" for finding in wrong)
        print(f"{truth['id']:<40}{verdict:<18}{shown}{fixed}")
    share, median = found / max(len(others), 1), statistics.median(others or [0])
    print(
        f"the true line in {found} of {len(others)} ({share:.0%}; the bar is {FOUND:.0%}), other lines: {median:g} "
        f"at the median, {statistics.mean(others or [0]):.1f} on average; {false} findings on controls and fixed lines"
    )
    return 0 if share >= FOUND and median <= OTHERS and not false else 1


if __name__ == "__main__":
    sys.exit(main())
