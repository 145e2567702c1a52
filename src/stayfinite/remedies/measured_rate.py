"""A learning rate taken from the size of the update that ruined the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager

from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE
from stayfinite.findings.outlier_batch import outlier_batch
from stayfinite.findings.update_size import (
    STILL_SCALED,
    USUAL_UPDATE,
    AbsurdUpdate,
    absurd_rate,
    first_absurd_update,
    is_measure,
    rounded,
    sets_itself_growing,
    steps_past_the_scaler,
    usual_rate,
)
from stayfinite.remedies.around_updates import scaled_rates
from stayfinite.remedies.remedy import Case, Prescription, Remedy


class MeasuredRate(Remedy):
    """The first update that went many times too far would have been one of a usual size at this rate."""

    name = "measured-rate"
    sentence = "train at the learning rate at which an update has a usual size"
    kinds = DEPENDS_ON_SIZE
    trains_otherwise, of_updates, rank = True, True, 7
    goes_first = True
    universal = True  # more of a lower rate

    def __init__(self, update: AbsurdUpdate | None = None) -> None:
        """`update`: the one that it is measured by."""
        self._factor, self._least = 1.0, 0.0
        if update is None:
            return
        rate = usual_rate(update.lr, update.moved)
        self._factor = rate / update.lr
        # of an actor and its critic one may have been right: what lies nearer to the rate that is aimed at stays
        self._least = math.sqrt(rate * update.lr)
        self.sentence = f"train at a learning rate of about {rate:g} in place of {update.lr:g}: " + (
            f"the update {_before(update.ago)}, about {rounded(update.moved)} times as large as the weights, is then "
            f"about {USUAL_UPDATE:g} of their size"
            if is_measure(update.lr, update.moved)
            else "one update went too far to measure the rate by"
        )

    def fits(self, case: Case) -> bool:
        """What failed depends on the size of the weights, or they were bad already; and one update was absurd, of a
        batch like the others: else that batch would set the rate of all."""
        by_size = case.kind in self.kinds or case.how.word in ("parameter", "state")
        update, run = first_absurd_update(case.step), case.step.run
        if not by_size or update is None or update.by_growth or outlier_batch(run.history) is not None:
            return False
        # its momentum or its decay is what the updates are so large by
        return absurd_rate(case.step) or not any(map(sets_itself_growing, run.optimizers))

    def ways(self, case: Case) -> Iterator[Prescription]:
        update = first_absurd_update(case.step)
        if update is not None:
            yield Prescription(MeasuredRate(update))

    def leaves(self, case: Case) -> str | None:
        """A rate that makes up for a loss scale is right until the scale changes."""
        return STILL_SCALED if steps_past_the_scaler(case.step) else None

    def applied(self) -> AbstractContextManager[None]:
        return scaled_rates(lambda number: self._factor, least=self._least)


def _before(steps: int) -> str:
    return "right before the failure" if steps == 1 else f"{steps} steps before the failure"
