"""A lower learning rate: a tenth, or a hundredth."""

from __future__ import annotations

from contextlib import AbstractContextManager

from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE, Kind
from stayfinite.findings.update_size import STILL_SCALED, steps_past_the_scaler
from stayfinite.remedies.around_updates import scaled_rates
from stayfinite.remedies.remedy import Case, Remedy


class LowerRate(Remedy):
    """A tenth of the learning rate."""

    name = "lower-rate"
    sentence = "train at a tenth of the learning rate"
    kinds = DEPENDS_ON_SIZE
    popular, trains_otherwise, of_updates, rank = True, True, True, 8
    rate_factor = 0.1

    def leaves(self, case: Case) -> str | None:
        """A rate that makes up for a loss scale is right until the scale changes."""
        return STILL_SCALED if steps_past_the_scaler(case.step) else None

    def applied(self) -> AbstractContextManager[None]:
        return scaled_rates(lambda number: self.rate_factor)


class MuchLowerRate(LowerRate):
    """A hundredth of the learning rate."""

    name = "much-lower-rate"
    sentence = "train at a hundredth of the learning rate"
    kinds = frozenset({Kind.GROWN, Kind.ABSURD_PARAMETER, Kind.POWER_OVERFLOW})
    popular, rank = False, 9
    universal = True  # where a lower rate fits it is more of the same
    rate_factor = 0.01
