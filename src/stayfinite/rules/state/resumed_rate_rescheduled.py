"""STA036: a scheduler that replaced the rate of the checkpoint before training went on."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import LoadEvent
from stayfinite.rules.evidence import depth_of_run_cause

_FACTOR = 1.5
_OWN_RATES = ("OneCycleLR", "CyclicLR", "SWALR")  # told their rates anew whenever they are made


class ResumedRateRescheduled(Rule[FailedStep]):
    """The optimizer was resumed in the middle of a schedule, and a scheduler then changed the learning rate
    without a step.

    ## What it finds
    `optimizer.load_state_dict` brought a learning rate that a schedule had reached, and before the next optimizer
    step a scheduler set another, by a factor of 1.5 or more: because it was made after the load and put the first
    learning rate back, or because it was stepped through the past epochs over a learning rate that was already
    decayed.

    ## Why it is bad
    Nothing fails. The first epoch after each resume runs at the initial learning rate and undoes what was annealed,
    or the learning rate is decayed twice and the rest of the run learns nothing.

    ## Example
    `opt.load_state_dict(ckpt["opt"]); sched = LambdaLR(opt, schedule); sched.last_epoch = start - 1`

    ## The fix
    Make the scheduler first, then load its state and the optimizer's; or give the constructor `last_epoch`.

    ## The popular fix that does not work
    Editing the initial learning rate until the resumed run looks right: the next resume happens at another epoch.

    ## References
    ultralytics/yolov5#292
    """

    code = "STA036"
    name = "resumed-learning-rate-rescheduled"
    cause = "RESUME_LR"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for load in subject.run.loads:
            change = load.rescheduled
            if load.kind != "optimizer" or not load.mid_schedule or not load.lr_after or change is None:
                continue
            if change.kind in _OWN_RATES or (change.how == "made" and _began_again(subject, load)):
                continue
            if load.lr_after / _FACTOR < change.rate < load.lr_after * _FACTOR:
                continue
            did = "was made and set" if change.how == "made" else "was stepped before any update, to"
            yield self.finding(
                f"the optimizer was resumed at learning rate {load.lr_after:g}, then {change.kind} {did} "
                f"{change.rate:g}",
                fix="make the scheduler before loading, then load its own state and the optimizer's; do not replay it",
                evidence={
                    "loaded": load.lr_after,
                    "used": change.rate,
                    "scheduler": change.kind,
                    "how": change.how,
                    "calls": change.calls,
                    "step": load.step,
                },
                depth=depth_of_run_cause(subject),
                place=change.place,
            )


def _began_again(subject: FailedStep, load: LoadEvent) -> bool:
    """The whole schedule starts over, not the rate alone: schedule-not-restored says so."""
    if any(other.kind == "scheduler" for other in subject.run.loads) or load.rescheduled is None:
        return False
    made = [s for s in subject.run.schedulers if s.created == load.rescheduled.place and s.start_epoch == 0]
    return any(s.steps > 1 and max(s.lrs, default=0.0) > 1.1 * (load.lr_after or 0.0) for s in made[-1:])
