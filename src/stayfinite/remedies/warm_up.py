"""Warm-up: the learning rate rises over the first updates instead of being there at once."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.remedies.around_updates import scaled_rates
from stayfinite.remedies.remedy import Case, Remedy

UPDATES: Final = 10
"""Few, so that the steps after the failing one are trained at the whole rate: only they can show that it helps."""
_EARLY: Final = 100


class WarmUp(Remedy):
    """A tenth of the rate at the first update, all of it from the tenth on."""

    name = "warm-up"
    sentence = f"let the learning rate rise to its value over {UPDATES} updates"
    kinds = frozenset(
        {Kind.GROWN, Kind.ABSURD_PARAMETER, Kind.POWER_OVERFLOW, Kind.EXP_OVERFLOW, Kind.HALF_OVERFLOW}
    )
    trains_otherwise, of_updates, rank = True, True, 8
    rate_factor = 1.0
    universal = True  # while it lasts it is a lower rate

    def fits(self, case: Case) -> bool:
        """Something grew within the first steps; what fails later was not too fast in its beginning."""
        return case.kind in self.kinds and case.step.step < _EARLY

    def applied(self) -> AbstractContextManager[None]:
        return scaled_rates(lambda number: min(1.0, (number + 1) / UPDATES))
