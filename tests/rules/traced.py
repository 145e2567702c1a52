"""Runs a snippet under the tracer, as a script of its own, and lets the rules explain what happened."""

from __future__ import annotations

import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Finding
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place
from stayfinite.replay import Tracer

HEAD = "import math\nimport torch, torch.nn as nn, torch.nn.functional as F\ntorch.manual_seed(0)\n"
MARK = "#!"  # behind the line where the value is born


@dataclass(frozen=True)
class Explained:
    """A traced snippet: the evidence, and what the rules make of it."""

    step: FailedStep | None
    findings: list[Finding]
    marked: list[int]
    names: dict[str, Any]

    @property
    def causes(self) -> list[str]:
        return [finding.cause for finding in self.findings]

    def __str__(self) -> str:
        births = [] if self.step is None else self.step.births[:4]
        told = [f"{b.phase} {b.op} {b.transition} line {b.birth.line} {dict(b.facts)}" for b in births]
        told += [f"{f.code} {f.cause} {f.depth} line {f.line}: {f.message}" for f in self.findings]
        return "\n".join(["", *told])


def explained(source: str, directory: Path) -> Explained:
    """Run the snippet; the bad value is looked for in `loss` and `out`, then in gradients and parameters."""
    text = HEAD + textwrap.dedent(source).strip() + "\n"
    path = directory / "snippet.py"
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    failure: Failure | None = None
    tracer = Tracer()
    with tracer:
        try:
            exec(compile(text, str(path), "exec"), names)
        except Exception as error:  # noqa: BLE001 - the snippet may raise whatever it likes
            frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
            failure = Failure(type(error).__name__, str(error), Place(str(path), frames[-1].lineno))
    step = _failed(tracer, names, failure)
    assert not tracer.follower.trouble, "".join(tracer.follower.trouble)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if MARK in line]
    return Explained(step, explain(step) if step is not None else [], marked, names)


def _failed(tracer: Tracer, names: dict[str, Any], failure: Failure | None) -> FailedStep | None:
    if failure is not None:
        step = tracer.failure_of(failure)
        return step or FailedStep(step=0, phase="forward", trigger="exception", failure=failure)
    for name in ("loss", "out"):
        value = names.get(name)
        if isinstance(value, torch.Tensor) and not torch.isfinite(value).all():
            return tracer.failure(sink=value, kind="loss" if name == "loss" else "result")
    return tracer.failure()
