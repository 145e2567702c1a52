"""CKP014: parts that a resumed run needs and the checkpoint does not have."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind


class StateMissing(Rule[Checkpoint]):
    """The checkpoint lacks a part that a resumed run needs: optimizer, moments or scheduler.

    ## What it finds
    A file that knows its step but has no optimizer (warning); an optimizer without any moments although the run is
    past step 0 (warning); learning rates written by a scheduler whose own state is not saved (warning); weights
    only (information: fine for inference).

    ## Why it is bad
    Without moments the first Adam steps have full size in every direction; without the scheduler the learning rate
    starts over, often at its peak or its warm-up. Loss jumps, and with a large learning rate the run does not come
    back.

    ## Example
        torch.save({"model": model.state_dict(), "step": step}, path)

    ## The fix
    Save optimizer, scheduler, scaler, averages, random state and step together. To go on from weights only, warm
    the learning rate up again over a few hundred steps.

    ## The popular fix that does not work
    A lower learning rate from the start: the missing part is the second moment, which only comes back with steps.

    ## References
    PyTorch tutorial "Saving and loading a general checkpoint"
    """

    code = "CKP014"
    name = "state-missing"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        if not subject.of_kind(Kind.WEIGHTS):
            return
        moments = subject.of_kind(Kind.OPTIMIZER)
        if not subject.optimizers and not moments:
            yield from self._no_optimizer(subject)
            return
        for optimizer in subject.optimizers:
            stateless = not any("beta1" in g.options or g.options.get("momentum") for g in optimizer.groups)
            if not optimizer.entries and not moments and subject.step and not stateless:
                yield self.finding(
                    f"{optimizer.name} has no moments although the run is at step {subject.step}: a resume starts cold",
                    fix="save optimizer.state_dict() after training began, or warm the learning rate up again "
                    "after loading",
                    evidence={"step": subject.step, "missing": "moments"},
                    file=optimizer.file,
                )
        scheduled = [o for o in subject.optimizers if any(g.initial_lr is not None for g in o.groups)]
        if scheduled and not subject.schedulers:
            group = next(g for g in scheduled[0].groups if g.initial_lr is not None)
            yield self.finding(
                f"{scheduled[0].name} had a scheduler (rate {_shown(group.lr)}, initial "
                f"{_shown(group.initial_lr)}) whose state "
                "is not in the checkpoint: after a resume the schedule starts over",
                fix="save scheduler.state_dict() too; now, set last_epoch of the new scheduler to the present step",
                evidence={"lr": group.lr, "initial_lr": group.initial_lr, "missing": "scheduler"},
                file=scheduled[0].file,
            )

    def _no_optimizer(self, subject: Checkpoint) -> Iterator[Finding]:
        # A step in the file's name alone is also what published weights have.
        meant_to_resume = subject.step_from not in ("", "its name") or bool(
            subject.schedulers or subject.scalers
        )
        missing = ["optimizer"] if subject.schedulers else ["optimizer", "scheduler"]
        held = "weights and scheduler, but no optimizer" if subject.schedulers else "weights only"
        rate = "" if subject.schedulers else " and the learning rate of step 0"
        step = f" at step {subject.step}" if subject.step is not None else ""
        yield self.finding(
            f"{held}{step}: a run resumed from here starts with cold moments{rate}",
            fix=f"fine for inference; to resume, save {' and '.join(missing)} too, or warm the learning rate up again",
            evidence={"missing": missing, "step": subject.step},
            file=subject.path,
            severity=Severity.WARNING if meant_to_resume else Severity.INFO,
        )


def _shown(rate: float | None) -> str:
    return "unknown" if rate is None else f"{rate:.4g}"
