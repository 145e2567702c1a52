"""RUN022: an optimizer that is given a learning rate of NaN or Inf."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class RateNotFinite(Rule[FailedStep]):
    """The learning rate itself was NaN or Inf when the optimizer stepped.

    ## What it finds
    A step whose update is not finite, or was not made, because the learning rate of a param group is not.

    ## Why it is bad
    Loss and gradients are finite, and every weight is NaN after the update: weights, data and model are looked at,
    and none of them is at fault. No batch brings the learning rate back.

    ## Example
    `lr = base * np.float64(1 - step / total) ** 0.9` in a run that makes one step more than `total`

    ## The fix
    Keep the schedule inside of its domain for any number of steps: `max(0.0, 1 - step / total)`, a division by
    `max(1, total - warmup)`. Count the steps of an epoch with `len(loader)`, which counts a last, smaller batch.

    ## The popular fix that does not work
    Clipping gradients, or a lower learning rate to begin with: the schedule makes NaN of any.

    ## References
    torch.optim.lr_scheduler.PolynomialLR
    """

    code = "RUN022"
    name = "learning-rate-not-finite"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR
    more_specific_than = ("RUN001", "RUN010", "NUM021", "NUM025")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for optimizer in subject.run.optimizers:
            if math.isfinite(optimizer.lr):
                continue
            before = [r for r in subject.run.history if r.lr is not None and math.isfinite(r.lr)]
            was = f"; it was {before[-1].lr:.3g} at step {before[-1].step}" if before else ""
            schedule = next((s for s in subject.run.schedulers if s.steps), None)
            yield self.finding(
                f"the learning rate of {optimizer.kind} is {optimizer.lr:g}{was}",
                fix="keep the schedule inside of its domain for any number of steps: max(0.0, 1 - step / total), "
                "max(1, total - warmup); and count the steps of an epoch with len(loader)",
                evidence={"rate": optimizer.lr, "last_finite": before[-1].lr if before else None},
                depth=Depth.UPSTREAM,
                place=schedule.stepped if schedule is not None else optimizer.stepped,
            )
