"""STA030: optimizer state that was not restored on resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Resume, StepRecord
from stayfinite.rules.evidence import depth_of_run_cause
from stayfinite.rules.state.resumed_loss import same_training

_LIKE_BEFORE = 1.5  # the loss of the loaded weights, against the largest before the save: it is the same task
_JUMP = 5.0  # the losses after the first update, against those before the save
_APART = 1.5  # also a smaller jump, where the two do not overlap, and it is nothing like the noise before
_FEWEST, _NOISES = 8, 4.0


class MomentsNotRestored(Rule[FailedStep]):
    """A resumed optimizer has no moments, although it is no new training.

    ## What it finds
    `load_state_dict` of an optimizer whose file holds param groups but no moments although steps had been taken.
    A new Adam that goes on with loaded weights and without moments, while its scheduler was loaded in the middle of
    its schedule; or whose loss is at first the one from before the save and, from its first update on, five times
    that, or less where the losses had been smooth and none of those after it comes down to them. New weights, a new
    task or another learning rate are fine-tuning, and need no moments.

    ## Why it is bad
    Adam without moments takes first steps of the full learning rate in every coordinate, at weights that needed
    small ones: the loss jumps after each resume.

    ## Example
    `torch.save({"model": model.state_dict(), "scheduler": scheduler.state_dict()}, path)`

    ## The fix
    Save and load everything: model, optimizer, scheduler, scaler, averages, random state.

    ## The popular fix that does not work
    Warming up again: it hides the jump and loses the moments still.

    ## References
    Lightning-AI/pytorch-lightning#10766
    """

    code = "STA030"
    name = "moments-not-restored"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "NUM025")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for load in subject.run.loads:
            if load.kind == "optimizer" and load.moments_missing:
                yield self.finding(
                    "the optimizer state that was loaded holds no moments although steps had been taken",
                    fix="save optimizer.state_dict() whole, and load it after the optimizer is made",
                    evidence={"kind": load.kind, "step": load.step},
                    depth=depth_of_run_cause(subject),
                    place=load.place,
                )
        for resume in subject.run.resumes:
            if not resume.adaptive or resume.has_moments or resume.optimizer_loaded:
                continue
            why = _why_it_is_a_resume(resume, subject.run.first_steps)
            if why is None:
                continue
            yield self.finding(
                f"{resume.optimizer} began without moments at step {resume.step}, at weights that were loaded: {why}",
                fix="put optimizer.state_dict() into the checkpoint, and load it with the weights",
                evidence={
                    "optimizer": resume.optimizer,
                    "step": resume.step,
                    "scheduler_epoch": resume.scheduler_epoch,
                    "before": list(resume.before[-5:]),
                    "after": list(resume.after[:5]),
                },
                depth=depth_of_run_cause(subject),
                place=resume.saved if resume.saved.line and not resume.saved_optimizer else resume.loaded,
            )


def _why_it_is_a_resume(resume: Resume, first_steps: Sequence[StepRecord]) -> str | None:
    if resume.scheduler_epoch:
        return f"its scheduler was loaded at step {resume.scheduler_epoch}, so the run goes on"
    if not same_training(resume, first_steps) or resume.after[0] > _LIKE_BEFORE * max(resume.before):
        return None
    before, after = median(resume.before[-10:]), median(resume.after[1:])
    if after < _JUMP * before and not _apart(resume.before[-10:], resume.after):
        return None
    return f"the loss was {resume.after[0]:.3g} with them, as before the save, and {after:.3g} after the first update"


def _apart(before: Sequence[float], after: Sequence[float]) -> bool:
    """Every loss after the first update is above every one before the save, by more than these ever moved; the very
    first, of the weights as they were loaded, is not."""
    noise = max(abs(b - a) for a, b in pairwise(before))
    jump = median(after[1:]) - max(before)
    lasting = len(before) >= _FEWEST and len(after) >= _FEWEST and min(after[1:]) > max(before) >= after[0]
    return lasting and jump > _NOISES * noise and median(after[1:]) >= _APART * median(before)
