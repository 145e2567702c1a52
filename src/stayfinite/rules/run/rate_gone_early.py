"""RUN017: a schedule that has taken the rate away long before the run ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StepRecord

_LONG = 20
_PER_UPDATE = 0.9  # steps of the scheduler for each update: fewer is a schedule by epochs
_CONVERGED = 1e-2  # gradients this much smaller than at first: there was nothing left to learn


class RateGoneEarly(Rule[FailedStep]):
    """A schedule that is stepped for each batch has decayed the learning rate to nothing, and half of the run
    did not learn.

    ## What it finds
    A finished run in which a scheduler was stepped once for each update (or more often), the learning rate of all
    param groups fell below a hundred-thousandth of its peak, at least half of the updates were made with such a
    learning rate, and the gradients had not become small before.

    ## Why it is bad
    Nothing fails and the loss is flat, as if the model could do no better. A schedule that was written in epochs
    (`step_size=5`) is over within the first of them when the batch loop steps it.

    ## Example
    `for x, y in loader: ...; optimizer.step(); scheduler.step()` with `StepLR(optimizer, step_size=5)`

    ## The fix
    Step the scheduler once an epoch, or give its lengths in steps: `step_size=5 * len(loader)`.

    ## The popular fix that does not work
    A higher initial rate: it is gone some batches later.

    ## References
    torch.optim.lr_scheduler: each schedule counts the calls of its own step()
    """

    code = "RUN017"
    name = "learning-rate-gone-early"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if not subject.run.complete or _has_converged(subject.run.first_steps, subject.run.history):
            return
        for schedule in subject.run.schedulers:
            by_update = schedule.updates >= _LONG and schedule.steps >= _PER_UPDATE * schedule.updates
            if not by_update or not schedule.peak or schedule.start_epoch > 0:
                continue
            if 2 * schedule.gone < schedule.steps or not schedule.lrs:
                continue
            place = schedule.stepped if schedule.stepped.line else schedule.created
            yield self.finding(
                f"{schedule.kind} was stepped {schedule.steps} times in {schedule.updates} updates and took the "
                f"learning rate from {schedule.peak:g} to {schedule.lrs[-1]:.2g}: {schedule.gone} of the steps "
                f"were made at less "
                "than 1e-5 of the peak",
                fix="step the scheduler once an epoch, or give its lengths in steps (step_size=5 * len(loader))",
                evidence={
                    "steps": schedule.steps,
                    "updates": schedule.updates,
                    "gone": schedule.gone,
                    "peak": schedule.peak,
                    "last": schedule.lrs[-1],
                },
                place=place,
            )


def _has_converged(first: Sequence[StepRecord], history: Sequence[StepRecord]) -> bool:
    early = [record.grad_norm for record in first if record.grad_norm is not None]
    late = [record.grad_norm for record in history[len(history) // 2 :] if record.grad_norm is not None]
    return bool(early and late) and median(late) < _CONVERGED * median(early)
