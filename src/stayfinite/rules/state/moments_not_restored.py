"""STA030: optimizer state that was not restored on resume."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class MomentsNotRestored(Rule[FailedStep]):
    """A resumed optimizer has no moments, or state that a load left out.

    ## What it finds
    `load_state_dict` of an optimizer whose file holds param groups but no moments although steps had been taken,
    and module loads that left parameters or buffers unfilled in the middle of a run.

    ## Why it is bad
    Adam without moments takes first steps of the full rate in every coordinate, at weights that needed small
    ones: the loss jumps after each resume.

    ## Example
    Saving `optimizer.param_groups` instead of `optimizer.state_dict()`

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

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for load in subject.loads:
            if load.kind == "optimizer" and load.moments_missing:
                yield self.finding(
                    "the optimizer state that was loaded holds no moments although steps had been taken",
                    fix="save optimizer.state_dict() whole, and load it after the optimizer is made",
                    evidence={"kind": load.kind, "step": load.step},
                    confidence=0.88,
                    file=load.place.file,
                    line=load.place.line,
                )
