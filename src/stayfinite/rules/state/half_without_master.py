"""STA004: half parameters, an adaptive optimizer, no master copy."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class HalfWithoutMaster(Rule[Setup]):
    """Half-precision parameters are updated by an adaptive optimizer that keeps no float32 copy of them.

    ## What it finds
    float16 or bfloat16 parameters in a group of one of torch's adaptive optimizers. For bfloat16 it is an
    information: such runs stay finite, but lose updates.

    ## Why it is bad
    float16 moments under- and overflow. In both dtypes an update smaller than about 1/256 (bfloat16) or 1/2048
    (float16) of its weight is rounded away: the run looks healthy and learns little.

    ## Example
    `torch.optim.AdamW(model.bfloat16().parameters(), lr=5e-5)`: one step changes about half of the weights.

    ## The fix
    float32 parameters with autocast (and a GradScaler for float16), or an optimizer with a float32 master copy.

    ## The popular fix that does not work
    Raising the learning rate until updates survive the rounding: the large ones then diverge.

    ## References
    meta-pytorch/torchtune#2254, afiaka87/glide-finetune#5
    """

    code = "STA004"
    name = "half-without-master"
    cause = "PURE_LOWP_OPTIMIZER"
    severity = Severity.WARNING

    def check(self, subject: Setup) -> Iterator[Finding]:
        for optimizer in subject.optimizers:
            if not optimizer.adaptive or optimizer.keeps_master:
                continue
            for group in optimizer.groups:
                for dtype in sorted({"float16", "bfloat16"} & set(group.dtypes)):
                    yield self.finding(
                        f"{optimizer.name} group {group.index} updates {dtype} parameters with {dtype} moments and "
                        "no float32 master copy",
                        fix="keep float32 parameters and use autocast, or an optimizer with a float32 master copy",
                        evidence={"dtype": dtype, "group": group.index, "lr": group.lr},
                        severity=Severity.WARNING if dtype == "float16" else Severity.INFO,
                        cause="PURE_LOWP_OPTIMIZER" if dtype == "float16" else "BF16_PRECISION",
                    )
