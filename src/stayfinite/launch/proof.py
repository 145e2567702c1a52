"""prove: remedies tried on a script that failed, in a sandboxed process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from stayfinite.findings import Incident, Severity
from stayfinite.findings.proven import attach
from stayfinite.findings.trial import ProofReport
from stayfinite.launch import second_run
from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.launch.script_capsule import facts_of
from stayfinite.prove.written_test import test_of
from stayfinite.sandbox import process

_STARTING = 60.0  # seconds that python and torch may take before the first trial


def prove(
    options: Options,
    beginning: Beginning,
    incidents: list[Incident],
    seconds: Callable[[int], float],
    say: Callable[[str], None],
) -> None:
    """Try remedies on the first failure that has a place in the source, and write what came of it into it.

    `seconds` tells how long after the start a step was reached.
    """
    incident = next((one for one in incidents if _provable(one)), None)
    if incident is None or incident.birth is None:
        return
    failure = second_run.FailurePoint(incident.step, seconds(incident.step), f"step {incident.step} failed")
    reason = second_run.obstacle(options, beginning, failure)
    if reason is None and failure.seconds > options.prove_limit:
        reason = (
            f"one run to the failing step takes {failure.seconds:.0f} s, and trying may take "
            f"{options.prove_limit:.0f} s (--prove-limit)"
        )
    if reason is not None:
        incident.proof_remark = f"no remedy was tried: {reason}"
        return
    say(f"trying remedies on step {incident.step} in a sandbox, for at most {options.prove_limit:.0f} s.")
    try:
        report = _in_sandbox(options, beginning, incident, failure)
    except KeyboardInterrupt:
        incident.proof_remark = "trying remedies was interrupted"
        return
    attach(incident, report)
    if incident.patch is not None and incident.test is None:
        why = incident.findings[0].message if incident.findings else "a bad value"
        incident.test = test_of(facts_of(options, beginning), why, report.line)


def _provable(incident: Incident) -> bool:
    birth = incident.birth
    if birth is None or birth.line is None or incident.reproduced is False:
        return False
    if birth.kind == "finite" and not _raised_by_values(incident):
        return False
    return any(finding.severity is Severity.ERROR for finding in incident.findings) or not incident.findings


def _raised_by_values(incident: Incident) -> bool:
    """A decomposition that raises for a finite matrix: a run that is followed sees the op that raised."""
    causes = [finding.cause for finding in incident.findings[:1]]
    return incident.trigger == "exception" and causes == ["LINALG_DEGENERATE"]


def _in_sandbox(
    options: Options, beginning: Beginning, incident: Incident, failure: second_run.FailurePoint
) -> ProofReport:
    past, _ = beginning.files.past()
    birth = incident.birth
    assert birth is not None
    kind = second_run.sandbox_kind(options)
    with tempfile.TemporaryDirectory(prefix="stayfinite-") as folder:
        exchange = Path(folder)
        state, task, told = exchange / "state", exchange / "task.json", exchange / "proof.json"
        beginning.save(state, stop_after_step=failure.step + 1)
        task.write_text(
            json.dumps(
                {
                    "target": options.target,
                    "arguments": list(options.arguments),
                    "module": options.module,
                    "file": birth.file,
                    "line": birth.line,
                    "step": incident.step,
                    "op": birth.op,
                    "seconds": options.prove_limit,
                    "in_a_copy": kind == "namespaces",
                }
            )
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        done = process.run(
            [sys.executable, *flags, "-m", "stayfinite.launch.proving", str(exchange)],
            kind,
            options.prove_limit + _STARTING,
            environment=beginning.again(state),
            folder=beginning.folder,
            exchange=exchange,
            past=past,
            progress=_Progress(told.with_suffix(".progress")),
        )
        if not told.exists():
            return ProofReport(remark=f"nothing proved: the process that tries remedies {done.sentence}")
        return ProofReport.from_json(json.loads(told.read_text(encoding="utf-8")))


class _Progress:
    """On a terminal, a line that says what is being tried."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, seconds: float) -> None:
        if sys.stderr.isatty() and self._path.exists():
            text = self._path.read_text(encoding="utf-8", errors="replace")
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print(f"\rstayfinite: {text}, {seconds:.0f} s"[:width], end="\x1b[K", file=sys.stderr, flush=True)
