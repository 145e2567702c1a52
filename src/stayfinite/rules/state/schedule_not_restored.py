"""STA035: a schedule that starts over although its optimizer was resumed."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import depth_of_run_cause

_NEW_PHASE = ("SWALR",)  # has a rate of its own, and is made for a phase of its own


class ScheduleNotRestored(Rule[FailedStep]):
    """The optimizer was resumed from a checkpoint, and its learning-rate schedule began again at step 0.

    ## What it finds
    An optimizer whose state was loaded with a learning rate, no `load_state_dict` of a scheduler, and a scheduler
    that started at 0 and set a learning rate that differs from the loaded one by more than a tenth.

    ## Why it is bad
    Warm-up and peak come a second time at weights that were already annealed: the loss jumps after each resume,
    and what was learnt at low learning rates is lost.

    ## Example
    A checkpoint with model and optimizer, and `LambdaLR(optimizer, schedule)` made anew

    ## The fix
    Save and load `scheduler.state_dict()`, after the optimizer's.

    ## The popular fix that does not work
    A lower peak learning rate for the second part: it fits one resume.

    ## References
    Lightning-AI/pytorch-lightning#10766, Nerogar/OneTrainer#1604
    """

    code = "STA035"
    name = "schedule-not-restored"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        resumed = [load for load in subject.run.loads if load.kind == "optimizer" and load.lr_after]
        if not resumed or any(load.kind == "scheduler" for load in subject.run.loads):
            return
        loaded = resumed[-1].lr_after or 0.0
        for schedule in subject.run.schedulers[-1:]:
            if (
                schedule.kind in _NEW_PHASE
                or schedule.start_epoch > 0
                or schedule.steps < 2
                or not schedule.lrs
            ):
                continue
            reached = max(schedule.lrs)
            if reached <= 1.1 * loaded or resumed[-1].moments_missing:
                continue
            yield self.finding(
                f"the optimizer was resumed at learning rate {loaded:g}, and {schedule.kind} began again and "
                f"set {reached:g}",
                fix="save scheduler.state_dict() in the checkpoint and load it after the optimizer's",
                evidence={"loaded": loaded, "set": reached, "schedule": schedule.kind},
                depth=depth_of_run_cause(subject),
                place=schedule.created,
            )
