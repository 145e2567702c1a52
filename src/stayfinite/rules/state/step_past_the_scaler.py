"""STA034: an optimizer that stepped on scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class StepPastTheScaler(Rule[FailedStep]):
    """The optimizer was stepped directly, on gradients that the GradScaler had multiplied and not yet divided.

    ## What it finds
    `optimizer.step()` after `scaler.scale(loss).backward()`, without `scaler.step(optimizer)` or `scaler.unscale_`.

    ## Why it is bad
    The gradients are thousands of times too large. SGD diverges at once; Adam hides it, because it divides by the
    size of the gradient, but its eps, clipping and weight decay no longer mean what they say, and no step is
    skipped on overflow.

    ## Example
    `scaler.scale(loss).backward(); optimizer.step(); scaler.update()`

    ## The fix
    `scaler.step(optimizer)`: it unscales, checks for overflow, and steps.

    ## The popular fix that does not work
    Dividing the rate by the scale: the scale changes while training.

    ## References
    Lightning-AI/pytorch-lightning#9599
    """

    code = "STA034"
    name = "step-past-the-scaler"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.scalers:
            if not scaler.bypassed or scaler.scale <= 1.0:
                continue
            place = subject.optimizers[0].stepped if subject.optimizers else scaler.created
            yield self.finding(
                f"{scaler.bypassed} optimizer steps were made on gradients still multiplied by the loss scale "
                f"({scaler.scale:g} now)",
                fix="call scaler.step(optimizer) instead of optimizer.step()",
                evidence={"steps": scaler.bypassed, "scale": scaler.scale},
                confidence=0.95,
                file=place.file,
                line=place.line,
            )
