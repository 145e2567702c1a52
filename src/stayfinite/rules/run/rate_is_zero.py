"""RUN015: a run whose learning rate is zero throughout."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_LONG = 10


class RateIsZero(Rule[FailedStep]):
    """The effective learning rate was zero at every step of the run.

    ## What it finds
    A finished run of at least ten optimizer steps, some of them applied, whose learning rate was exactly 0 at each.

    ## Why it is bad
    Nothing was learnt, and nothing says so: the loss moves with the batches.

    ## Example
    `LambdaLR(opt, lambda step: step // warmup_steps)`, where integer division gives 0 during the whole run

    ## The fix
    Print the learning rate of the param groups after the first steps, and compare it with the configuration.

    ## The popular fix that does not work
    Another seed, or more epochs.

    ## References
    YunYang1994/TensorFlow2.0-Examples#8
    """

    code = "RUN015"
    name = "learning-rate-is-zero"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        records = (*subject.run.first_steps, *subject.run.history)
        if not any(record.applied for record in records):
            return  # nothing was trained: a warm-up that begins at zero waits for the first update
        seen = [record.lr for record in records]
        resumed = bool(subject.run.loads) or any(
            schedule.start_epoch > 0 for schedule in subject.run.schedulers
        )
        if resumed:
            return  # a schedule that is over may well stay at zero
        if not subject.run.complete or len(seen) < _LONG or any(rate is None or rate != 0.0 for rate in seen):
            return
        place = subject.run.schedulers[0].created if subject.run.schedulers else (
            subject.run.optimizers[0].created if subject.run.optimizers else None
        )  # fmt: skip
        steps = subject.run.history[-1].step + 1 if subject.run.history else len(seen)
        yield self.finding(
            f"the learning rate was 0 at all {steps} steps",
            fix="print the learning rate of the param groups after the first step; check integer divisions in "
            "the schedule",
            evidence={"steps": len(seen)},
            file=place.file if place else None,
            line=place.line if place else None,
        )
