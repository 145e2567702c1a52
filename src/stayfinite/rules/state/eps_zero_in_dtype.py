"""STA003: an optimizer's eps is zero in the dtype of its parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class EpsZeroInDtype(Rule[Setup]):
    """The optimizer's eps rounds to zero in the dtype of the parameters it updates.

    ## What it finds
    A parameter group of an adaptive optimizer whose parameters are float16 and whose eps is below the smallest
    float16 number, where the optimizer keeps its moments in that dtype too.

    ## Why it is bad
    eps exists to keep the quotient m / (sqrt(v) + eps) away from m / 0. In float16, 1e-8 is 0; v underflows for
    gradients below about 2e-4, so the very first update is 0/0 or m/0: NaN or Inf weights from finite gradients.

    ## Example
    `torch.optim.AdamW(model.half().parameters(), eps=1e-8)`

    ## The fix
    Keep float32 parameters and use autocast with a GradScaler, or an optimizer that holds a float32 master copy.

    ## The popular fix that does not work
    `eps=1e-4` ends the NaN, but it is then larger than most sqrt(v): the optimizer is no longer Adam.

    ## References
    afiaka87/glide-finetune#5
    """

    code = "STA003"
    name = "eps-zero-in-dtype"
    cause = "EPS_UNDERFLOW"
    severity = Severity.ERROR

    def check(self, subject: Setup) -> Iterator[Finding]:
        for optimizer in subject.optimizers:
            for group in optimizer.groups:
                if (
                    group.eps
                    and "float16" in group.dtypes
                    and not optimizer.keeps_master
                    and _half(group.eps) == 0
                ):
                    yield self.finding(
                        f"{optimizer.name} group {group.index} has eps {group.eps:g}, which is 0 in float16: "
                        "its first update divides by zero wherever the second moment underflows",
                        fix="keep float32 parameters with autocast and a GradScaler, or a float32 master copy",
                        evidence={"eps": group.eps, "dtype": "float16", "group": group.index},
                    )


def _half(value: float) -> float:
    """The value rounded to float16."""
    rounded: float = struct.unpack("e", struct.pack("e", value))[0]
    return rounded
