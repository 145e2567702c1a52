"""STA024: a loss scale that keeps halving (in a traced run)."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import ScalerFacts

_CONSEQUENCE, _HEALTHY_STEPS = 0.85, 5


class ScaleKeepsHalving(Rule[FailedStep]):
    """The loss scale halves step after step, because what overflows does not depend on it.

    ## What it finds
    A GradScaler that refused at least five steps in a row and whose loss was itself not finite in them, or that
    refused ten in a row and fell below 1. Halvings after which steps are applied again are normal and not reported.

    ## Why it is bad
    A smaller scale cannot cure an overflow of the forward pass, a NaN in the data or in the weights. The scaler
    halves for ever; no update is applied; at scale 0 the next clean batch divides by 0 and the weights are NaN.

    ## Example
    An activation of 7e4 in a float16 layer: the loss is inf at every scale

    ## The fix
    Find the forward op that overflows (the report names it) and run it in float32 or bfloat16.

    ## The popular fix that does not work
    `min_loss_scale=1e-10`, a static scale, or a smaller init_scale: no scale helps.

    ## References
    NVIDIA/apex#318, deepspeedai/DeepSpeed#931
    """

    code = "STA024"
    name = "scale-keeps-halving"
    cause = "LOSS_SCALE_COLLAPSE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.scalers:
            certain = _collapse(scaler)
            if certain is None:
                continue
            yield self.finding(
                f"the loss scale fell from {scaler.init_scale:g} to {scaler.scale:g}: {scaler.skipped} of "
                f"{scaler.steps} steps refused, {scaler.streak} in a row, the loss itself bad in {scaler.forward_bad}",
                fix="find the op that overflows in the forward pass and run it in float32 or bfloat16",
                evidence={
                    "init_scale": scaler.init_scale,
                    "scale": scaler.scale,
                    "skipped": scaler.skipped,
                    "streak": scaler.streak,
                    "forward_bad": scaler.forward_bad,
                },
                confidence=min(certain, _CONSEQUENCE) if _follows(subject, scaler) else certain,
                file=scaler.created.file,
                line=scaler.created.line,
            )


def _follows(step: FailedStep, scaler: ScalerFacts) -> bool:
    """After healthy steps an op began to overflow: that op is the cause, the falling scale its consequence."""
    return bool(step.births) and scaler.steps - scaler.skipped >= _HEALTHY_STEPS


def _collapse(scaler: ScalerFacts) -> float | None:
    """A scale that fell and then works is no collapse, however low it is."""
    if scaler.scale < 1e-20 and scaler.skipped:
        return 0.97
    if scaler.streak >= 5 and scaler.forward_bad >= 5:
        return 0.94
    return 0.9 if scaler.streak >= 10 and scaler.scale < 1.0 <= scaler.init_scale else None
