"""STA010: the loss scale fell below its floor."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import ScalerFacts
from stayfinite.rules.evidence import depth_of_run_cause

_HEALTHY_STEPS = 5
_FIX = "find the op that overflows in the forward pass and run it in float32 or bfloat16"


class ScaleCollapsed(Rule[FailedStep]):
    """The loss scale has fallen below its floor: step after step overflows whatever the scale.

    ## What it finds
    A GradScaler whose scale would drop below the floor of the policy (1.0 by default), or that has refused so many
    steps in a row, with losses that were not finite before scaling, that no scale helps. An ordinary back-off, a
    few halvings after which steps are applied again, is counted but is no alarm.

    ## Why it is bad
    A scale cannot cure an overflow in the forward pass or a NaN in the data. GradScaler has no floor: it halves
    for ever, and at scale 0 the next clean batch gives 0 * inf = NaN weights that its own check does not see.

    ## Example
    An activation of 7e4 in a float16 convolution: the loss is finite or not, the gradients never are.

    ## The fix
    Find the op that overflows (bfloat16, or that op in float32); repair the batch. The guard holds the scale at
    the floor meanwhile.

    ## The popular fix that does not work
    `min_loss_scale=1e-10` or a static scale: both only postpone the division by zero.

    ## References
    NVIDIA/apex#318
    """

    code = "STA010"
    name = "loss-scale-collapsed"
    cause = "LOSS_SCALE_COLLAPSE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        depth = Depth.CONSEQUENCE if subject.births else Depth.RUN
        scale, floor = subject.scale, subject.scale_floor
        if scale is not None and floor is not None and scale < floor:
            yield self.finding(
                f"the loss scale fell to {scale:g}, below the floor of {floor:g}: lowering it further cannot help",
                fix=_FIX,
                evidence={"scale": scale, "floor": floor},
                depth=depth,
            )
        for scaler in subject.run.scalers:
            if not _collapsed(scaler):
                continue
            yield self.finding(
                f"the loss scale fell from {scaler.init_scale:g} to {scaler.scale:g}: {scaler.skipped} of "
                f"{scaler.steps} steps refused, {scaler.streak} in a row, the loss itself bad in {scaler.forward_bad}",
                fix=_FIX,
                evidence={
                    "init_scale": scaler.init_scale,
                    "scale": scaler.scale,
                    "skipped": scaler.skipped,
                    "streak": scaler.streak,
                    "forward_bad": scaler.forward_bad,
                },
                # Where no step ever went well the overflow is there at every scale: that is the failure.
                depth=depth
                if scaler.steps - scaler.skipped >= _HEALTHY_STEPS
                else depth_of_run_cause(subject),
                place=scaler.created,
            )


def _collapsed(scaler: ScalerFacts) -> bool:
    """A scale that fell and then works is no collapse, however low it is."""
    if scaler.scale < 1e-20 and scaler.skipped:
        return True
    if scaler.streak >= 5 and scaler.forward_bad >= 5:
        return True
    return scaler.streak >= 10 and scaler.scale < 1.0 <= scaler.init_scale
