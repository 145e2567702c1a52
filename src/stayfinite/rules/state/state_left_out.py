"""STA038: something that the loss depends on is not in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Resume
from stayfinite.rules.state.resumed_loss import same_training

_JUMP = 5.0
_COMPARED, _LAST = 20, 10  # losses before the save
_ABOVE = 0.85  # of all pairs, those in which the loss after the resume is above the one before the save
_OUTLIERS = 0.1  # of the losses before the save may be as large as the first one after


class StateLeftOut(Rule[FailedStep]):
    """Weights and optimizer came back from the checkpoint, and the loss did not: something else was left out.

    ## What it finds
    A run that saves, builds everything anew and loads model and optimizer, with moments and the same rate. The very
    first loss, before any update, is far above what it was when the file was saved, and so are those after it (five
    times in the median). Nothing is said when training after the save had the same losses without any load: then
    the task itself has changed.

    ## Why it is bad
    Weights that were trained behind a normaliser, a vocabulary or a running mean are wrong behind another. The run
    seems to recover, but has forgotten, and evaluation with this checkpoint is wrong for good.

    ## Example
    `torch.save({"policy": policy.state_dict(), "optimizer": opt.state_dict()}, path)` without `env.running_mean`

    ## The fix
    Save and load everything that the loss depends on: running means and scales, averages, queues, curricula, random
    state. Compare one batch's loss before the save and after the load.

    ## The popular fix that does not work
    A lower learning rate after the resume: the weights are as wrong, and take longer to recover.

    ## References
    torch documentation, "Saving and Loading a General Checkpoint"
    """

    code = "STA038"
    name = "state-left-out"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.ERROR
    more_specific_than = ("RUN001", "RUN010")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if subject.births:
            return  # a loss that is not finite has a cause of its own
        for resume in subject.run.resumes:
            if not (
                resume.optimizer_loaded
                and resume.has_moments
                and same_training(resume, subject.run.first_steps)
            ):
                continue
            if not _came_back_worse(resume):
                continue
            before, after = median(resume.before[-_LAST:]), median(resume.after)
            yield self.finding(
                f"model and optimizer were loaded, and the loss is {resume.after[0]:.3g} at once and {after:.3g} in "
                f"the median, after {before:.3g} before the save: something it depends on was not restored",
                fix="save and load running means, scales, averages and all else that the loss depends on",
                evidence={
                    "before": list(resume.before[-10:]),
                    "after": list(resume.after),
                    "rate": resume.rate_used,
                    "step": resume.step,
                },
                place=resume.saved,
            )


def _came_back_worse(resume: Resume) -> bool:
    first, before, after = resume.after[0], resume.before[-_COMPARED:], resume.after
    if sum(loss >= first for loss in before) > _OUTLIERS * len(before):
        return False
    if min(first, median(after)) < _JUMP * median(before[-_LAST:]):
        return False
    if sum(a > b for a in after for b in before) < _ABOVE * len(after) * len(before):
        return False
    return not resume.went_on or median(after) >= _JUMP * median(resume.went_on)
