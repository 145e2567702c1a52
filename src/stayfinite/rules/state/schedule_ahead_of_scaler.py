"""STA033: a schedule that advances on steps the scaler refused."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_LEAST = 5


class ScheduleAheadOfScaler(Rule[FailedStep]):
    """The learning-rate schedule was stepped on steps that the GradScaler had refused.

    ## What it finds
    At least five scheduler steps after optimizer steps that the scaler skipped.

    ## Why it is bad
    The schedule counts steps that did not happen: warm-up ends early, decay comes too soon, and after a bad phase
    the learning rate no longer fits the number of updates.

    ## Example
    `scaler.step(opt); scaler.update(); scheduler.step()` without a look at the scale

    ## The fix
    Step the schedule only when the scale did not fall: `if scaler.get_scale() >= before: scheduler.step()`.

    ## The popular fix that does not work
    Silencing the warning that torch prints about the order of the calls.

    ## References
    Lightning-AI/pytorch-lightning#9599
    """

    code = "STA033"
    name = "schedule-ahead-of-scaler"
    cause = "SCALER_MISUSE"
    severity = Severity.WARNING

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.run.scalers:
            ahead = scaler.scheduler_stepped_on_skip
            if ahead < _LEAST:
                continue
            place = subject.run.schedulers[0].stepped if subject.run.schedulers else scaler.created
            yield self.finding(
                f"the schedule advanced on {ahead} of {scaler.skipped} steps that the scaler refused",
                fix="step the schedule only when scaler.get_scale() did not fall in this step",
                evidence={"ahead": ahead, "skipped": scaler.skipped, "steps": scaler.steps},
                place=place,
            )
