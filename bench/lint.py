"""How fast `stayfinite lint` reads source: lines per second on one core, and the ratio to ast.parse alone.

    python bench/lint.py [--lines 100000] [--rounds 3] [PATH...]

Without paths it lints Python files of the installed torch until the number of lines is reached. Every round parses and
lints the same files, one after the other, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

from stayfinite.findings import all_rules
from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings


def files_of(paths: list[Path], wanted: int) -> tuple[list[Path], int]:
    """Python files until there are enough lines."""
    chosen: list[Path] = []
    lines = 0
    for root in paths:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            chosen.append(path)
            lines += path.read_text(encoding="utf-8", errors="replace").count("\n")
            if lines >= wanted:
                return chosen, lines
    return chosen, lines


def parse_all(files: list[Path]) -> None:
    for path in files:
        try:
            ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    paths = options.paths
    if not paths:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            sys.exit("torch is not installed; name files or folders to lint")
        home = Path(spec.origin).parent
        paths = [
            home / name for name in ("nn", "optim", "distributions", "ao", "distributed", "utils", "testing")
        ]
    files, lines = files_of(paths, options.lines)
    all_rules()  # imported once; a run of the command pays for it as well, but not by the line
    parsed, linted, findings = [], [], 0
    for _ in range(options.rounds):
        start = time.process_time()
        parse_all(files)
        parsed.append(time.process_time() - start)
        start = time.process_time()
        report = lint([str(path) for path in files], Settings())
        linted.append(time.process_time() - start)
        findings = len(report.findings)
    parse, whole = statistics.median(parsed), statistics.median(linted)
    print(
        f"{len(files)} files, {lines} lines, {findings} findings ({1000 * findings / lines:.2f} per 1,000 lines)"
    )
    print(f"{'':12}{'CPU seconds':>12}{'per 100,000 lines':>20}{'lines/s':>12}")
    for name, seconds in (("ast.parse", parse), ("lint", whole)):
        print(f"{name:12}{seconds:12.2f}{1e5 * seconds / lines:20.2f}{lines / seconds:12.0f}")
    print(f"lint / ast.parse: {statistics.median([b / a for a, b in zip(parsed, linted, strict=True)]):.1f}")


if __name__ == "__main__":
    main()
