"""STA029: a GradScaler that starts over on resume."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import ScalerFacts
from stayfinite.rules.evidence import depth_of_run_cause

_SKIPPED = 3


class ScalerNotRestored(Rule[FailedStep]):
    """A new GradScaler was made although the run had already found its loss scale, and steps are lost again.

    ## What it finds
    A scaler without `load_state_dict` that starts above the scale which an earlier scaler of the run had reached
    (or in a run that loaded an optimizer), and then refused at least three of its first ten steps.

    ## Why it is bad
    Each resume loses updates while the scale comes down again. With gradient accumulation and frequent restarts
    that is a noticeable part of the training; with a schedule that steps anyway it also shifts the rates.

    ## Example
    A checkpoint with model and optimizer, and `scaler = GradScaler()` after it

    ## The fix
    Save and load `scaler.state_dict()` with the rest.

    ## The popular fix that does not work
    Ignoring it because "overflow at start is normal": it was normal once.

    ## References
    Lightning-AI/pytorch-lightning#10766
    """

    code = "STA029"
    name = "scaler-not-restored"
    cause = "RESUME_STATE_MISSING"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.run.scalers:
            resumed = _began_after_a_load(subject, scaler)
            if scaler.loaded or scaler.skipped_first < _SKIPPED:
                continue
            higher = scaler.earlier_scale is not None and scaler.earlier_scale < scaler.init_scale
            if not higher and not resumed:
                continue
            before = (
                f"; the scale before was {scaler.earlier_scale:g}" if scaler.earlier_scale is not None else ""
            )
            yield self.finding(
                f"a new GradScaler started at {scaler.init_scale:g} and refused {scaler.skipped_first} of its first "
                f"steps{before}",
                fix="save scaler.state_dict() in the checkpoint and load it on resume",
                evidence={
                    "init_scale": scaler.init_scale,
                    "earlier_scale": scaler.earlier_scale,
                    "skipped_first": scaler.skipped_first,
                },
                depth=depth_of_run_cause(subject),
                place=scaler.created,
            )


def _began_after_a_load(step: FailedStep, scaler: ScalerFacts) -> bool:
    """The first steps of a run that is saved and resumed later have nothing to restore."""
    if scaler is not step.run.scalers[-1]:
        return False
    return any(
        load.kind == "optimizer" and (load.step == 0 or len(step.run.scalers) > 1) for load in step.run.loads
    )
