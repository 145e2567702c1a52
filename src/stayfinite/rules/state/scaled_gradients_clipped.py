"""STA023: gradients that were clipped while multiplied by the loss scale (in a traced run)."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class ScaledGradientsClipped(Rule[FailedStep]):
    """Gradients were clipped before the GradScaler had unscaled them.

    ## What it finds
    Calls of `clip_grad_norm_` or `clip_grad_value_` on gradients that still hold a loss scale above 1.

    ## Why it is bad
    The norm is thousands of times too large, so every gradient is clipped; unscaled afterwards, the update is
    thousands of times too small. The curve is flat, nothing is NaN.

    ## Example
    `scaler.scale(loss).backward(); clip_grad_norm_(params, 1.0); scaler.step(opt)`

    ## The fix
    `scaler.unscale_(optimizer)` before clipping, every step.

    ## The popular fix that does not work
    A higher rate: the clipped update changes with every change of the scale.

    ## References
    Lightning-AI/pytorch-lightning#9599
    """

    code = "STA023"
    name = "scaled-gradients-clipped"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for clip in subject.clips:
            if not clip.scaled or (clip.scale is not None and clip.scale <= 1.0):
                continue
            scale = f"{clip.scale:g}" if clip.scale is not None else "the loss scale"
            norm = f", norm {clip.norm:.3g}" if clip.norm is not None else ""
            yield self.finding(
                f"{clip.calls} calls clipped gradients to {clip.max_norm:g} while multiplied by {scale}{norm}",
                fix="call scaler.unscale_(optimizer) before clip_grad_norm_",
                evidence={
                    "scale": clip.scale,
                    "max_norm": clip.max_norm,
                    "norm": clip.norm,
                    "calls": clip.calls,
                },
                confidence=0.95,
                file=clip.place.file,
                line=clip.place.line,
            )
