"""RUN011: a schedule whose rate only ever rises, or rises again when it should be over."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import SchedulerFacts
from stayfinite.rules.evidence import depth_of_run_cause

_PEAKED = ("OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts")  # these rise by design
_LONG = 50
_SWINGS, _OFTEN = 3, 10


class WarmupNeverEnds(Rule[FailedStep]):
    """The schedule does not do what its settings say: the learning rate rises without end, or past its last step.

    ## What it finds
    A run that failed while its schedule had raised the learning rate at every one of at least 50 steps (a warm-up
    longer than the training, often epochs taken for steps), and a cosine schedule that was stepped beyond its
    length and climbs again.

    ## Why it is bad
    The planned peak was never the problem: there is no peak. The learning rate passes the point of divergence
    sooner or later.

    ## Example
    `warmup_steps = warmup_epochs * steps_per_epoch` with 10 warm-up epochs in a training of one

    ## The fix
    Assert `warmup_steps < total_steps` in the same unit, and log the learning rate that the optimizer really has.

    ## The popular fix that does not work
    A lower peak rate: the training then runs below its learning rate throughout, and never decays.

    ## References
    YunYang1994/TensorFlow2.0-Examples#8
    """

    code = "RUN011"
    name = "warmup-never-ends"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        birth = subject.birth
        failed = birth is not None and birth.transition in (
            "finite->inf",
            "inf->nan",
            "finite->nan",
            "amplified",
        )
        for schedule in subject.run.schedulers:
            if schedule.kind in _PEAKED or not schedule.lrs:
                continue
            if failed and schedule.rising and schedule.steps >= _LONG and schedule.start_epoch <= 0:
                yield self.finding(
                    f"{schedule.kind} raised the learning rate at each of {schedule.steps} steps, to "
                    f"{schedule.lrs[-1]:.3g}: the warm-up did not end before the run failed",
                    fix="assert warmup_steps < total_steps (both in optimizer steps), and log the effective "
                    "learning rate",
                    evidence={"first": schedule.lrs[0], "last": schedule.lrs[-1], "steps": schedule.steps},
                    depth=depth_of_run_cause(subject),
                    place=schedule.created,
                )
            elif (
                schedule.rose_after_fall
                and schedule.start_epoch <= 0
                and schedule.total_steps is not None
                and schedule.steps > schedule.total_steps
            ):
                yield self.finding(
                    f"{schedule.kind} of length {schedule.total_steps} was stepped {schedule.steps} times: the "
                    f"learning rate climbs again, from {min(schedule.lrs):.3g} to {schedule.lrs[-1]:.3g}",
                    fix="give the schedule the number of steps it is really stepped (steps, not epochs)",
                    evidence={
                        "length": schedule.total_steps,
                        "steps": schedule.steps,
                        "last": schedule.lrs[-1],
                    },
                    depth=depth_of_run_cause(subject),
                    place=schedule.created,
                )
        if subject.run.complete:
            yield from self._wrong_unit(subject)
        failure = subject.failure
        if failure is not None and "Tried to step" in failure.text:
            yield self.finding(
                f"the schedule is shorter than the training: {failure.text.strip().splitlines()[0]}",
                fix="give the schedule the number of optimizer steps of the whole training, resumed parts included",
                evidence={"error": failure.text},
                depth=depth_of_run_cause(subject),
                place=failure.place,
            )

    def _wrong_unit(self, step: FailedStep) -> Iterator[Finding]:
        """A schedule in epochs that is stepped by update, or one in updates that is stepped by epoch."""
        for schedule in step.run.schedulers:
            what = _wrong_unit(schedule) if schedule.start_epoch <= 0 and schedule.lrs else None
            if what is not None:
                yield self.finding(
                    f"{schedule.kind} was stepped {schedule.steps} times in {schedule.updates} updates: {what}",
                    fix="give its lengths in the unit in which it is stepped, or step it once an epoch (once an "
                    "update)",
                    evidence={
                        "length": schedule.total_steps,
                        "steps": schedule.steps,
                        "updates": schedule.updates,
                        "base": schedule.base,
                        "last": schedule.lrs[-1],
                    },
                    place=schedule.stepped if schedule.stepped.line else schedule.created,
                )


def _wrong_unit(schedule: SchedulerFacts) -> str | None:
    steps, updates, length, last = schedule.steps, schedule.updates, schedule.total_steps, schedule.lrs[-1]
    if (
        schedule.kind == "CosineAnnealingLR"
        and length
        and steps >= _SWINGS * length
        and steps >= 0.9 * updates
    ):
        return f"its length is {length}, so the learning rate swings down and up {steps / (2 * length):.0f} times"
    if steps < 3 or updates < _OFTEN * steps:
        return None
    if length and 0.8 * length <= updates <= 1.2 * length:
        return f"its length is {length}, the number of updates, and it saw {steps} of them"
    rising = all(a < b for a, b in pairwise(schedule.lrs))
    if rising and schedule.base and last <= 0.1 * schedule.base:
        return f"the warm-up ended at a learning rate of {last:.2g}, {last / schedule.base:.1%} of {schedule.base:g}"
    return None
