"""STA008: gradients are clipped while still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class ClipBeforeUnscale(Rule[Setup]):
    """Gradients are clipped before the scaler has unscaled them.

    ## What it finds
    A call of `clip_grad_norm_` in a guarded loop with an enabled GradScaler before `scaler.unscale_(optimizer)`.

    ## Why it is bad
    The norm is 65536 times too large, so every gradient is clipped, and after unscaling the update is 65536 times
    too small. The loss curve is flat and nothing looks wrong.

    ## Example
    `scaler.scale(loss).backward(); clip_grad_norm_(params, 1.0); scaler.step(opt)`

    ## The fix
    Call `scaler.unscale_(optimizer)` before clipping, or let the guard clip: `Guard(clip_norm=1.0)`.

    ## The popular fix that does not work
    Raising the learning rate: the clipped update changes with every change of the scale.

    ## References
    Lightning-AI/pytorch-lightning#9599
    """

    code = "STA008"
    name = "clip-before-unscale"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: Setup) -> Iterator[Finding]:
        if subject.clipped_scaled:
            yield self.finding(
                "gradients were clipped while still multiplied by the loss scale, so every update is far too small",
                fix="call scaler.unscale_(optimizer) before clipping, or let the guard clip with Guard(clip_norm=...)",
                evidence={"scaler": True},
            )
