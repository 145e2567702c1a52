"""STA028: a schedule that climbs after a resume."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import depth_of_run_cause

_LONG = 20


class RateRisesAfterResume(Rule[FailedStep]):
    """After a resume the schedule is past its end or at another place, and the learning rate climbs instead of
    falling.

    ## What it finds
    A scheduler that was made to continue (`last_epoch` above 0, or loaded) and whose learning rate fell and then
    rose for good, or rose from near zero on, without being a schedule with restarts.

    ## Why it is bad
    A cosine is periodic. When its length is recomputed from an edited configuration, step 649 of 600 is on the
    way up again: the run ends at a high rate.

    ## Example
    `LambdaLR(opt, lambda s: 0.5 * (1 + cos(pi * s / total)), last_epoch=649)` with total changed to 600

    ## The fix
    Store the length in the checkpoint and compare it; clamp the progress: `min(1.0, s / total)`.

    ## The popular fix that does not work
    Starting from scratch: the next edit of the configuration does it again.

    ## References
    Nerogar/OneTrainer#1604
    """

    code = "STA028"
    name = "learning-rate-rises-after-resume"
    cause = "RESUME_LR"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        loaded = any(load.kind == "scheduler" for load in subject.run.loads)
        for schedule in subject.run.schedulers:
            resumed = schedule.start_epoch > 0 or loaded
            if not resumed or not schedule.rose_after_fall or schedule.steps < _LONG or not schedule.lrs:
                continue
            yield self.finding(
                f"{schedule.kind} continued at step {schedule.start_epoch} and its learning rate rises, from "
                f"{min(schedule.lrs):.3g} to {schedule.lrs[-1]:.3g} over {schedule.steps} steps",
                fix="store the schedule's length in the checkpoint, and clamp its progress: min(1.0, step / total)",
                evidence={
                    "start": schedule.start_epoch,
                    "lowest": min(schedule.lrs),
                    "last": schedule.lrs[-1],
                    "total_steps": schedule.total_steps,
                },
                depth=depth_of_run_cause(subject),
                place=schedule.created,
            )
