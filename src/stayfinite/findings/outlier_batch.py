"""The batch that a run never came back from: its loss stood far out before any update had been unusual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from stayfinite.findings.subjects.run_record import StepRecord

_FACTOR = 100.0  # above the largest of the steps before
_BEFORE, _FEWEST = 32, 8  # steps that it is compared with
_ORDINARY = 10.0  # times the usual update: more, and the weights may have brought the loss about
_MODERATE = 1.0  # the size of the weights: an update that went further was no usual one
_CALM = 10.0  # times their median: losses that had gone up so far already were growing
_STAYED = 3.0  # every loss after it is so many times above the largest before


@dataclass(frozen=True, slots=True)
class OutlierBatch:
    """A step that was applied, and the largest loss and gradient norm of the steps before it."""

    record: StepRecord
    loss: float
    grad_norm: float


def outlier_batch(history: Sequence[StepRecord]) -> OutlierBatch | None:
    """The first of a run that failed; None if there is none, or if an update before it may have led there."""
    known = [r for r in history if r.applied and r.loss is not None and r.grad_norm is not None]
    for number in range(_FEWEST, len(known)):
        now, before = known[number], known[max(0, number - _BEFORE) : number]
        if not math.isfinite(now.loss or 0.0) or not math.isfinite(now.grad_norm or 0.0):
            return None
        losses, norms = [abs(r.loss or 0.0) for r in before], [r.grad_norm or 0.0 for r in before]
        stands_out = abs(now.loss or 0.0) > _FACTOR * max(losses) and (now.grad_norm or 0.0) > _FACTOR * max(
            norms
        )
        if stands_out:
            stayed = all(abs(r.loss or 0.0) > _STAYED * max(losses) for r in known[number + 1 :])
            calm = max(losses) <= _CALM * median(losses)
            ordinary = stayed and calm and _were_ordinary(before)
            return OutlierBatch(now, max(losses), max(norms)) if ordinary else None
    return None


def _were_ordinary(before: Sequence[StepRecord]) -> bool:
    """All updates that led to it are known, and none of the last was larger than usual."""
    moved = [r.update_ratio for r in before if r.update_ratio is not None]
    return (
        len(moved) >= _FEWEST
        and before[-1].update_ratio is not None
        and max(moved[-3:]) <= min(_ORDINARY * median(moved), _MODERATE)
    )
