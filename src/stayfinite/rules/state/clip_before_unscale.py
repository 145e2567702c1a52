"""STA008: gradients are clipped while still multiplied by the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, depth_of_run_cause


class ClipBeforeUnscale(Rule[FailedStep]):
    """Gradients are clipped before the scaler has unscaled them.

    ## What it finds
    Calls of `clip_grad_norm_` between `scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)`.

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

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for clip in subject.run.clips:
            if not clip.scaled or (clip.scale is not None and clip.scale <= 1.0):
                continue
            scale = f"{clip.scale:g}" if clip.scale is not None else "the loss scale"
            norm = f", norm {clip.norm:.3g}" if clip.norm is not None else ""
            limit = f" to {clip.max_norm:g}" if clip.max_norm is not None else ""
            yield self.finding(
                f"{counted(clip.calls, 'call')} clipped gradients{limit} while they were multiplied by "
                f"{scale}{norm}, so every update is far too small",
                fix="call scaler.unscale_(optimizer) before clipping, or let the guard clip with Guard(clip_norm=...)",
                evidence={
                    "scale": clip.scale,
                    "max_norm": clip.max_norm,
                    "norm": clip.norm,
                    "calls": clip.calls,
                },
                depth=depth_of_run_cause(subject),
                place=clip.place,
            )
