"""An update on its way, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import Incident, as_float
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.loop_body import LoopBody
from stayfinite.recover import Action
from stayfinite.watch.sentinel import Reading
from stayfinite.watch.verdict import Numbers, StepVerdict
from stayfinite.watch.watcher import Trouble, Window


@dataclass(slots=True)
class StepResult:
    """What became of a step. `applied` is None while that is not known: accumulating, or `sync=False`.

    `aux` is what the step function gave beside the loss.
    """

    step: int
    loss: float | None
    applied: bool | None
    grad_norm: float | None = None
    action: str = "none"
    components: dict[str, float] = field(default_factory=dict)
    incident: Incident | None = None
    aux: Any = None


@dataclass(slots=True)
class Attempt:
    """One update: its micro-batches, raw gradients, optimizers and rates, and its numbers on the device."""

    window: Window
    reading: Reading
    optimizers: list[Optimizer]  # that make the update
    make_update: Callable[[], Any]
    rates: list[float]
    numbers: Numbers
    group: list[Optimizer]  # those, and all others that the same losses reached: applied or refused together
    beside: Reading | None = None  # the gradients of the others
    norm: Tensor | None = None  # where it is another than the reading's
    clip: float | None = None  # what its gradients are clipped at by the guard
    bad_settings: list[str] = field(default_factory=list)
    copied: bool = False  # parameters and optimizer state were copied, so the update can be taken back
    made: bool = False  # an optimizer has changed something, and a copy can take it back
    update_was_bad: bool = False  # gradients were finite, what the optimizer made of them was not
    passes_before: int = 0  # backward passes of the same body that updates had answered, which were applied
    rate: float | None = None  # the largest of the optimizers that make it
    body: LoopBody | None = None  # of the loop that asked for it, while that can be run again
    not_repeatable: str = ""  # why it cannot be

    def trained(self) -> list[Tensor]:
        """The parameters that this update would change."""
        parameters = (p for o in self.optimizers for group in o.param_groups for p in group["params"])
        return [p for p in parameters if p.grad is not None]

    def culprits(self) -> list[str]:
        """The parameters whose gradient holds NaN or Inf."""
        return self.reading.culprits() + (self.beside.culprits() if self.beside is not None else [])

    def largest_gradient(self) -> tuple[str, float] | None:
        """The parameter with the largest gradient, and how large it is."""
        readings = [self.reading, *([self.beside] if self.beside is not None else [])]
        found = [largest for reading in readings if (largest := reading.largest()) is not None]
        return max(found, key=lambda named: named[1], default=None)


def largest_rate(optimizers: Sequence[Optimizer]) -> float | None:
    """Of these optimizers' groups; None if none has one."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return max((rate for g in groups if (rate := as_float(g.get("lr"))) is not None), default=None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """An attempt, and what a look at it showed. `trouble` is None if the update was made and may stay."""

    attempt: Attempt
    verdict: StepVerdict
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A step that was refused and undone; what is still to be done about it."""

    refused: FailedStep
    attempt: Attempt
    action: Action
    what: str
    result: StepResult
    first: bool  # no failure came right before it
