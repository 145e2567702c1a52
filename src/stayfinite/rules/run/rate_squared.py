"""RUN021: a schedule's function that gives the learning rate where a factor of it is expected."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_LONG = 10


class RateSquared(Rule[FailedStep]):
    """The function of a LambdaLR gave the learning rate itself, so the optimizer used its square.

    ## What it finds
    A LambdaLR under which at least ten updates were made, and whose highest learning rate is the square of the one
    that the optimizer was made with.

    ## Why it is bad
    LambdaLR multiplies. With a rate of 1e-3 the run trains at 1e-6: nothing fails, and next to nothing is learnt.

    ## Example
    `LambdaLR(opt, lambda step: lr * min(1, step / warmup))` with `Adam(..., lr=lr)`

    ## The fix
    Give the factor alone (`min(1, step / warmup)`), or make the optimizer with a learning rate of 1.

    ## The popular fix that does not work
    More epochs, or a rate ten times as high: its square is a hundred times as high.

    ## References
    torch.optim.lr_scheduler.LambdaLR
    """

    code = "RUN021"
    name = "learning-rate-squared"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for schedule in subject.run.schedulers:
            base, highest = schedule.base, max(schedule.lrs, default=0.0)
            if (
                schedule.kind != "LambdaLR"
                or not base
                or schedule.start_epoch > 0
                or schedule.updates < _LONG
            ):
                continue
            if base > 0.5 or not math.isclose(highest, base * base, rel_tol=1e-6):
                continue
            yield self.finding(
                f"the highest learning rate of {schedule.updates} updates was {highest:g}, the square of {base:g}: the "
                "function given to LambdaLR gives the rate, and it is multiplied with it",
                fix="let the function give a factor of the learning rate, 1 at its peak",
                evidence={"base": base, "highest": highest, "updates": schedule.updates},
                place=schedule.created,
            )
