"""An update on its way, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from stayfinite.findings import Incident
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.recover import Action
from stayfinite.watch.sentinel import Reading
from stayfinite.watch.verdict import Numbers, Verdict
from stayfinite.watch.watcher import Trouble, Window


@dataclass(slots=True)
class StepResult:
    """What became of a step. `applied` is None while that is not known: accumulating, or `sync=False`."""

    step: int
    loss: float | None
    applied: bool | None
    grad_norm: float | None = None
    action: str = "none"
    components: dict[str, float] = field(default_factory=dict)
    incident: Incident | None = None


@dataclass(slots=True)
class Attempt:
    """One update: its micro-batches, raw gradients, optimizers and rates, and its numbers on the device."""

    window: Window
    reading: Reading
    optimizers: list[Optimizer]
    make_update: Callable[[], Any]
    rates: list[float]
    numbers: Numbers
    update_was_bad: bool = False  # gradients were finite, what the optimizer made of them was not


@dataclass(frozen=True, slots=True)
class Outcome:
    """An attempt, and what a look at it showed. `trouble` is None if the update was made and may stay."""

    attempt: Attempt
    verdict: Verdict
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A step that was refused and undone; what is still to be done about it."""

    refused: FailedStep
    attempt: Attempt
    action: Action
    what: str
    result: StepResult
