"""How often a failure is found, at the right line, with the right cause; and how often a healthy run is accused.

Usage: python bench/accuracy.py --cases DIR [--peers] [--only ID ...] [--json FILE] [--locate auto|off]

DIR holds `<id>.py`, `<id>.fixed.py` and `truth.jsonl`, one line a case: id, kind, birth_lines, accept_taxonomy.
Every script runs unchanged in a process of its own, forked from one that has torch loaded, with the default
options of `stayfinite run` (or with --locate off). The peers run on the same scripts in the same way.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forking import in_fork, load, stayfinite
from peers import PEERS, PeerVerdict, run_peer


@dataclass
class Result:
    """What one script gave."""

    case: str
    script: str
    truth: dict[str, Any]
    incidents: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None
    exit_code: int = 0
    peers: dict[str, PeerVerdict] = field(default_factory=dict)

    @property
    def failing(self) -> bool:
        return self.script == f"{self.case}.py" and self.truth["kind"] != "control"

    @property
    def accused(self) -> dict[str, Any] | None:
        """The first incident with a finding at error level."""
        return next((i for i in self.incidents if any(f["severity"] == "error" for f in i["findings"])), None)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Its findings at error level, best first."""
        incident = self.accused
        return [f for f in incident["findings"] if f["severity"] == "error"] if incident else []

    @property
    def lines(self) -> list[int]:
        """The line of the birth, or of the first finding where nothing was born."""
        incident = self.accused
        if incident is None:
            return []
        birth = incident["birth"]
        return (
            [birth["line"]] if birth and birth["line"] else [f["line"] for f in self.errors[:1] if f["line"]]
        )

    @property
    def right_line(self) -> bool:
        return any(line in self.truth["birth_lines"] for line in self.lines)

    def right_cause(self, among: int) -> bool:
        causes = list(dict.fromkeys(f["cause"] for f in self.errors))
        return any(cause in self.truth["accept_taxonomy"] for cause in causes[:among])


def run_stayfinite(result: Result, cases: Path, work: Path, options: Sequence[str]) -> None:
    """Run one script under `stayfinite run` and read what it wrote."""
    output, log = work / f"{result.script}.json", work / f"{result.script}.log"

    kept = work / f"{result.script}.run"  # not beside the scripts
    command = [
        "run",
        "--fail-under",
        "0",
        "--format",
        "json",
        "--output",
        str(output),
        "--run-dir",
        str(kept),
    ]
    command += [*options, result.script]
    result.exit_code = in_fork(lambda: stayfinite(command), log, cases)
    said = log.read_text(errors="replace")
    if not output.exists():
        result.problem = "wrote nothing: " + (said.strip().splitlines() or ["no message"])[-1]
        return
    result.incidents = json.loads(output.read_text())["incidents"]
    result.problem = next((line for line in said.splitlines() if "problem of its own" in line), None)


def measure(cases: Path, only: Sequence[str], options: Sequence[str], peers: Sequence[str]) -> list[Result]:
    truths = [json.loads(line) for line in (cases / "truth.jsonl").read_text().splitlines() if line.strip()]
    results = [
        Result(truth["id"], name, truth)
        for truth in truths
        if not only or truth["id"] in only
        for name in (f"{truth['id']}.py", f"{truth['id']}.fixed.py")
        if (cases / name).exists()
    ]
    with tempfile.TemporaryDirectory() as folder:
        for result in results:
            run_stayfinite(result, cases, Path(folder), options)
            for peer in peers:
                verdict = Path(folder, f"{result.script}.{peer}")
                in_fork(
                    lambda p=peer, r=result, v=verdict: run_peer(p, r.script, v), Path(folder, "log"), cases
                )
                result.peers[peer] = PeerVerdict.read(verdict)
    return results


def share(hits: int, total: int) -> str:
    return f"{hits}/{total} ({hits / total:.0%})" if total else "-"


def print_table(results: list[Result], peers: Sequence[str]) -> None:
    failing, healthy = [r for r in results if r.failing], [r for r in results if not r.failing]
    born = [r for r in failing if r.truth["birth_lines"]]
    for r in failing:
        found = ", ".join(f"{f['code']} {f['cause']}" for f in r.errors[:3]) or "nothing"
        marks = ("line" if r.right_line else "LINE") + " " + ("cause" if r.right_cause(1) else "CAUSE")
        print(f"{r.case:38} {marks:11} line {r.lines} of {r.truth['birth_lines']}: {found} {r.problem or ''}")
    for r in healthy:
        if r.errors or r.problem:
            print(f"{r.script:38} FALSE ALARM {[(f['code'], f['line']) for f in r.errors]} {r.problem or ''}")
    heads = ("", "detected", "right line", "right cause", "in first 3", "false alarms")
    print("\n" + f"{heads[0]:24}" + "".join(f"{head:>15}" for head in heads[1:]))
    rows = [
        (
            "stayfinite run",
            share(sum(bool(r.errors) for r in failing), len(failing)),
            share(sum(r.right_line for r in born), len(born)),
            share(sum(r.right_cause(1) for r in failing), len(failing)),
            share(sum(r.right_cause(3) for r in failing), len(failing)),
            share(sum(bool(r.errors) for r in healthy), len(healthy)),
        )
    ]
    for peer in peers:
        rows.append(
            (
                peer,
                share(sum(r.peers[peer].alarm for r in failing), len(failing)),
                share(sum(r.peers[peer].line in r.truth["birth_lines"] for r in born), len(born)),
                "names none",
                "",
                share(sum(r.peers[peer].alarm for r in healthy), len(healthy)),
            )
        )
    for row in rows:
        print(f"{row[0]:24}" + "".join(f"{cell:>15}" for cell in row[1:]))


def as_json(result: Result) -> dict[str, Any]:
    """One result for programs (the tests read it)."""
    return {
        "script": result.script,
        "failing": result.failing,
        "exit_code": result.exit_code,
        "lines": result.lines,
        "right_line": result.right_line,
        "causes": list(dict.fromkeys(f["cause"] for f in result.errors)),
        "right_cause": result.right_cause(1),
        "samples": result.accused["birth"]["samples"] if result.accused and result.accused["birth"] else [],
        "errors": [f["code"] for f in result.errors],
        "incidents": len(result.incidents),
        "problem": result.problem,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--peers", action="store_true", help="also run the peers on the same scripts")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    parser.add_argument("--locate", default="auto", help="as stayfinite run has it: auto, off")
    asked = parser.parse_args()
    load()
    peers = [name for name, available in PEERS.items() if asked.peers and available()]
    results = measure(asked.cases.resolve(), asked.only, ["--locate", asked.locate], peers)
    print_table(results, peers)
    if asked.json is not None:
        asked.json.write_text(json.dumps([as_json(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
