"""How loss and gradient norm moved before a failure: whether they grew step by step, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stayfinite.findings.subjects.run_record import StepRecord

_LEAST_FACTOR = 30.0
_LEAST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Growth:
    """A quantity that grew over the last steps."""

    quantity: str
    lowest: float
    last: float
    steps: int

    @property
    def factor(self) -> float:
        return self.last / self.lowest if self.lowest > 0 else math.inf


def growth(history: Sequence[StepRecord]) -> Growth | None:
    """The stronger of the two growths, of loss and gradient norm; None when neither grew steadily."""
    found = [
        grown
        for name, values in (
            ("loss", [abs(r.loss) if r.loss is not None else None for r in history]),
            ("gradient norm", [r.grad_norm for r in history]),
            ("update", [r.update_ratio for r in history]),
        )
        if (grown := _grown(name, values)) is not None
    ]
    return max(found, key=lambda grown: grown.factor, default=None)


def of_the_last(history: Sequence[StepRecord]) -> list[StepRecord]:
    """The updates of the optimizers that made the last one: the losses of others are other numbers."""
    return [record for record in history if record.who == history[-1].who]


def _grown(name: str, values: Sequence[float | None]) -> Growth | None:
    """From the lowest point on, a rise by a large factor spread over several steps: one jump is no growth."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < _LEAST_STEPS:
        return None
    lowest_at = min(range(len(known)), key=lambda i: (known[i], -i))
    tail = known[lowest_at:]
    lowest, last = max(tail[0], 1e-30), tail[-1]
    if len(tail) < _LEAST_STEPS or last / lowest < _LEAST_FACTOR:
        return None
    rises = [math.log(max(b, 1e-30) / max(a, 1e-30)) for a, b in pairwise(tail)]
    if min(rises) > math.log(_LEAST_FACTOR):  # an explosion at every step needs no long history
        return Growth(name, lowest, last, len(tail) - 1)
    if len(tail) == _LEAST_STEPS:
        return None
    climbing = sum(rise > 0 for rise in rises) >= 0.7 * len(rises)
    largest_share = max(rises) / max(math.log(last / lowest), 1e-30)
    return Growth(name, lowest, last, len(tail) - 1) if climbing and largest_share < 0.7 else None
