"""What `stayfinite lint` says of installed code: crashes, findings per 1,000 lines, and every finding with its line.

    python bench/lint_installed.py SITE_PACKAGES/torch SITE_PACKAGES/transformers ...      training code in them
    python bench/lint_installed.py --containing '' --named 'modeling_*.py' SITE_PACKAGES/transformers/models

Training code is every Python file that contains one of the words optimizer, backward( or loss. The bar is at most one
finding per 1,000 lines over all; each finding is printed with the line it is about, to be judged by a reader.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings

PER_THOUSAND_LINES = 1.0


def training_files(roots: list[Path], containing: str, named: str) -> list[Path]:
    """The files below `roots` whose name and text fit."""
    wanted = re.compile(containing)
    return [
        path
        for root in roots
        for path in sorted(root.rglob(named))
        if path.is_file() and wanted.search(path.read_text(encoding="utf-8", errors="replace"))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--containing", default=r"optimizer|backward\(|loss", metavar="REGEX")
    parser.add_argument("--named", default="*.py", metavar="PATTERN")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    files = training_files(options.paths, options.containing, options.named)
    start = time.process_time()
    report = lint([str(path) for path in files], Settings())
    seconds = time.process_time() - start
    for finding in report.findings:
        path = Path(finding.file or "")
        line = path.read_text(encoding="utf-8").splitlines()[(finding.line or 1) - 1].strip()
        root = next(root for root in options.paths if path.is_relative_to(root))
        place = f"{path.relative_to(root.parent)}:{finding.line}"
        print(
            f"{finding.severity.name.lower():<8}{finding.code} {place}: {finding.message}\n        | {line}"
        )
    for sentence in report.unreadable:
        print(f"not read: {sentence}")
    share = 1000 * len(report.findings) / max(report.lines, 1)
    print(
        ", ".join(f"{code} {count}" for code, count in Counter(f.code for f in report.findings).most_common())
    )
    print(
        f"{report.files} files, {report.lines} lines, {len(report.findings)} findings ({share:.2f} per 1,000 lines), "
        f"{len(report.unreadable)} not read, {seconds:.0f} s"
    )
    return 1 if share > PER_THOUSAND_LINES else 0


if __name__ == "__main__":
    sys.exit(main())
