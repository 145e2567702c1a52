"""How far single updates moved the weights: the plainest sign of a learning rate that is far too high."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StepRecord

MANY_TIMES = 20.0  # the size of the weights; a fresh Adam on small weights moves them a few times their size
USUAL_UPDATE = 1e-3  # of the size of the weights
_USUAL_RATE = 1e-3  # where the update itself could not be measured
_RECENT = 16
_ABSURD = 1.0
_RUINED = 1e6  # times the loss before
STILL_SCALED = "finite, but the gradients are still multiplied by the loss scale, which changes"
_LASTING = 3  # losses after it: one may be an outlier


@dataclass(frozen=True, slots=True)
class Ruin:
    """A run that stayed finite, but whose loss never came back from one update."""

    step: int
    lr: float | None
    moved: float  # times the size of the weights
    before: float
    after: float


def ruin(history: Sequence[StepRecord]) -> Ruin | None:
    """The update that ruined a finished run: far too large, and the loss a million times as high ever since."""
    losses = [abs(r.loss) if r.loss is not None and math.isfinite(r.loss) else None for r in history]
    for number, record in enumerate(history):
        if not record.applied or record.update_ratio is None or not _went_far(record):
            continue
        before = [loss for loss in losses[: number + 1] if loss is not None]
        after = [loss for loss in losses[number + 1 :] if loss is not None]
        if before and len(after) >= _LASTING and min(after) >= _RUINED * max(max(before), 1e-30):
            return Ruin(record.step, record.lr, record.update_ratio, before[-1], after[-1])
    return None


def largest_update(step: FailedStep) -> float | None:
    """How many times their own size the weights were moved by one recent update, if that is absurd; else None."""
    before = [record for record in step.run.history[-_RECENT:] if record.step < step.step]
    ratios = [
        record.update_ratio for record in before if _went_far(record) and record.update_ratio is not None
    ]
    born = step.judged[0] if step.judged else None
    by_itself = (
        born.birth.phase == "optimizer" and born.how.kind is Kind.GROWN
        if born is not None
        else step.bad_update
    )
    if by_itself and (learning_rate(step) or 0.0) >= _ABSURD:
        ratios.append(math.inf)  # the update itself left the range
    return max(ratios, default=None)


@dataclass(frozen=True, slots=True)
class AbsurdUpdate:
    """The first recent update that moved the weights by many times their size: they were ordinary before it."""

    ago: int  # steps before the one that failed
    lr: float
    moved: float  # times the size of the weights; infinite if float32 does not hold the update


def usual_rate(lr: float, moved: float) -> float:
    """The learning rate, to one digit, at which an update that moved the weights so far has a usual size."""
    return float(f"{lr * USUAL_UPDATE / moved if math.isfinite(moved) else _USUAL_RATE:.0e}")


def first_absurd_update(step: FailedStep) -> AbsurdUpdate | None:
    """Where what is too large came from one update; None if none was so large, or its learning rate is not known."""
    if largest_update(step) is None:
        return None
    for record in step.run.history[-_RECENT:]:
        moved = record.update_ratio if _went_far(record) else None
        if record.step < step.step and moved is not None and record.lr:
            return AbsurdUpdate(step.step - record.step, record.lr, moved)
    rate = learning_rate(step)
    return AbsurdUpdate(0, rate, math.inf) if rate else None


def learning_rate(step: FailedStep) -> float | None:
    """That of the recent update which went many times too far; else of the last one, or else of the first optimizer."""
    known = [record for record in step.run.history if record.lr is not None]
    far = [record for record in known[-_RECENT:] if record.step < step.step and _went_far(record)]
    if far:
        return max(far, key=lambda record: record.update_ratio or 0.0).lr
    return known[-1].lr if known else next((optimizer.lr for optimizer in step.run.optimizers), None)


def steps_past_the_scaler(step: FailedStep) -> bool:
    """Updates were made of gradients that were still multiplied by a loss scale: their size is that of the scale."""
    return any(one.bypassed and one.scale > 1.0 for one in step.run.scalers)


def _went_far(record: StepRecord) -> bool:
    return record.update_ratio is not None and record.update_ratio >= MANY_TIMES


def absurd_rate(step: FailedStep) -> bool:
    """The learning rate is large by itself, and an update went far too far: then the data is not to blame."""
    return (learning_rate(step) or 0.0) >= _ABSURD and largest_update(step) is not None
