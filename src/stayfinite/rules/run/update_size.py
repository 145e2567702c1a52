"""How far single updates moved the weights: the plainest sign of a learning rate that is far too high."""

from __future__ import annotations

import math

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep

_MANY_TIMES = 20.0  # the size of the weights; a fresh Adam on small weights moves them a few times their size
_RECENT = 16
_ABSURD = 1.0


def largest_update(step: FailedStep) -> float | None:
    """How many times their own size the weights were moved by one recent update, if that is absurd; else None."""
    before = [record.update_ratio for record in step.run.history[-_RECENT:] if record.step < step.step]
    ratios = [ratio for ratio in before if ratio is not None and ratio >= _MANY_TIMES]
    born = step.judged[0] if step.judged else None
    by_itself = (
        born.birth.phase == "optimizer" and born.how.kind is Kind.GROWN
        if born is not None
        else step.bad_update
    )
    if by_itself and (learning_rate(step) or 0.0) >= _ABSURD:
        ratios.append(math.inf)  # the update itself left the range
    return max(ratios, default=None)


def learning_rate(step: FailedStep) -> float | None:
    """The learning rate of the last update, or else of the first optimizer."""
    seen = next((record.lr for record in reversed(step.run.history) if record.lr is not None), None)
    return seen if seen is not None else next((optimizer.lr for optimizer in step.run.optimizers), None)


def absurd_rate(step: FailedStep) -> bool:
    """The learning rate is large by itself, and an update went far too far: then the data is not to blame."""
    return (learning_rate(step) or 0.0) >= _ABSURD and largest_update(step) is not None
