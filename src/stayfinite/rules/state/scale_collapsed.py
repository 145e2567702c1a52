"""STA010: the loss scale fell below its floor."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.refused_step import RefusedStep


class ScaleCollapsed(Rule[RefusedStep]):
    """The loss scale has fallen below its floor: step after step overflows whatever the scale.

    ## What it finds
    A GradScaler whose scale would drop below the floor of the policy (1.0 by default). An ordinary back-off, a few
    halvings after which steps are applied again, is counted but is no alarm.

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

    def check(self, subject: RefusedStep) -> Iterator[Finding]:
        scale, floor = subject.scale, subject.scale_floor
        if scale is not None and floor is not None and scale < floor:
            yield self.finding(
                f"the loss scale fell to {scale:g}, below the floor of {floor:g}: lowering it further cannot help",
                fix="find the op that overflows in float16 and run it in float32 or bfloat16",
                evidence={"scale": scale, "floor": floor},
            )
