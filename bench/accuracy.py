"""How often a failure is found, at the right line, with the right cause; and how often a healthy run is accused.

Usage: python bench/accuracy.py --cases DIR [--peers] [--jobs 2] [--only ID ...]

DIR holds `<id>.py`, `<id>.fixed.py` and `truth.jsonl`, one line a case: id, kind, birth_lines, accept_taxonomy,
fixed_handled. Every script runs in its own process, unchanged, with the default options of `stayfinite run`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT = 300


@dataclass
class Result:
    """What one script gave."""

    case: str
    script: str
    truth: dict[str, Any]
    incidents: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None

    @property
    def failing(self) -> bool:
        return self.script == f"{self.case}.py" and self.truth["kind"] != "control"

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Findings at error level, of the first incident that has one, best first."""
        for incident in self.incidents:
            found = [f for f in incident["findings"] if f["severity"] == "error"]
            if found:
                return found
        return []

    @property
    def lines(self) -> list[int]:
        """The line of the birth, or of the first finding where nothing was born."""
        for incident in self.incidents:
            if incident["birth"] and incident["birth"]["line"]:
                return [incident["birth"]["line"]]
        return [f["line"] for f in self.errors[:1] if f["line"]]

    @property
    def right_line(self) -> bool:
        return any(line in self.truth["birth_lines"] for line in self.lines)

    def right_cause(self, among: int) -> bool:
        causes = list(dict.fromkeys(f["cause"] for f in self.errors))
        return any(cause in self.truth["accept_taxonomy"] for cause in causes[:among])


def run_stayfinite(script: Path, output: Path, options: Sequence[str]) -> tuple[list[dict[str, Any]], str | None]:
    """Run one script under `stayfinite run`; its incidents, and what went wrong."""
    command = [sys.executable, "-m", "stayfinite", "run", "--format", "json", "--output", str(output), *options]
    try:
        done = subprocess.run([*command, script.name], cwd=script.parent, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return [], f"took longer than {TIMEOUT} s"
    if not output.exists():
        return [], f"wrote nothing: {done.stderr.strip().splitlines()[-1:] or 'no message'}"
    problem = next((line for line in done.stderr.splitlines() if "problem of its own" in line), None)
    return json.loads(output.read_text())["incidents"], problem


def measure(cases: Path, only: Sequence[str], jobs: int, options: Sequence[str]) -> list[Result]:
    truths = [json.loads(line) for line in (cases / "truth.jsonl").read_text().splitlines() if line.strip()]
    scripts = [
        Result(truth["id"], name, truth)
        for truth in truths
        if not only or truth["id"] in only
        for name in (f"{truth['id']}.py", f"{truth['id']}.fixed.py")
        if (cases / name).exists()
    ]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def one(result: Result) -> Result:
            output = Path(folder, result.script + ".json")
            result.incidents, result.problem = run_stayfinite(cases / result.script, output, options)
            return result

        return list(pool.map(one, scripts))


def share(hits: int, total: int) -> str:
    return f"{hits}/{total} ({hits / total:.0%})" if total else "-"


def table(results: list[Result], peers: dict[str, list[bool]]) -> None:
    failing = [r for r in results if r.failing]
    healthy = [r for r in results if not r.failing]
    for r in failing:
        found = ", ".join(f"{f['cause']} {f['confidence']:.2f}" for f in r.errors[:3]) or "nothing"
        marks = ("line" if r.right_line else "LINE") + " " + ("cause" if r.right_cause(1) else "CAUSE")
        print(f"{r.case:38} {marks:11} lines {r.lines} of {r.truth['birth_lines']}: {found}{'  ! ' + r.problem if r.problem else ''}")
    for r in healthy:
        if r.errors or r.problem:
            print(f"{r.script:38} FALSE ALARM {[(f['code'], f['line']) for f in r.errors]} {r.problem or ''}")
    born = [r for r in failing if r.truth["birth_lines"]]
    print()
    print(f"{'':22} {'detected':>14} {'right line':>14} {'right cause':>14} {'in first 3':>14} {'false alarms':>14}")
    print(
        f"{'stayfinite run':22} {share(sum(bool(r.errors) for r in failing), len(failing)):>14}"
        f" {share(sum(r.right_line for r in born), len(born)):>14}"
        f" {share(sum(r.right_cause(1) for r in failing), len(failing)):>14}"
        f" {share(sum(r.right_cause(3) for r in failing), len(failing)):>14}"
        f" {share(sum(bool(r.errors) for r in healthy), len(healthy)):>14}"
    )
    for name, (detected, right, alarms) in peers.items():
        print(
            f"{name:22} {share(sum(detected), len(detected)):>14} {share(sum(right), len(right)):>14}"
            f" {'names none':>14} {'':>14} {share(sum(alarms), len(alarms)):>14}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--peers", action="store_true", help="also run the peers on the same scripts")
    parser.add_argument("--options", nargs="*", default=[], help="further options of stayfinite run")
    asked = parser.parse_args()
    results = measure(asked.cases.resolve(), asked.only, asked.jobs, asked.options)
    table(results, {})


if __name__ == "__main__":
    main()
