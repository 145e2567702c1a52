"""CKP011: a second moment that is negative, or zero because half precision could not hold it."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind, Tensor


class SecondMomentBroken(Rule[Checkpoint]):
    """Adam's second moment is negative, or zero everywhere in half precision while the first moment is not.

    ## What it finds
    `exp_avg_sq` with values below zero; and `exp_avg_sq` in float16 or bfloat16 that is zero everywhere although
    the `exp_avg` beside it has values, which means the squares were lost.

    ## Why it is bad
    Adam divides by sqrt(exp_avg_sq) + eps. The root of a negative number is NaN. With a lost second moment only eps
    is left, and 1e-8 is itself zero in float16: the update is m / 0.

    ## Example
        model.half(); torch.optim.AdamW(model.parameters(), eps=1e-8)

    ## The fix
    Keep the weights (or a master copy) and the optimizer state in float32, with autocast and a gradient scaler for
    the speed. Start the optimizer anew from this checkpoint.

    ## The popular fix that does not work
    eps=1e-4 in float16: finite, but the update is then decided by eps and no longer adapts to anything.

    ## References
    IEEE 754 binary16: smallest subnormal 6e-8; Micikevicius et al., Mixed Precision Training
    """

    code = "CKP011"
    name = "second-moment-broken"
    cause = "PURE_LOWP_OPTIMIZER"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        state = subject.of_kind(Kind.OPTIMIZER)
        first = {tensor.name: tensor for tensor in state if tensor.role == "exp_avg"}
        for tensor in state:
            stats = tensor.statistics
            if tensor.role not in ("exp_avg_sq", "max_exp_avg_sq") or stats is None or stats.minimum is None:
                continue
            if stats.minimum < 0:
                yield self._negative(tensor, stats.minimum, stats.negative)
            moment = first.get(tensor.name.removesuffix(tensor.role) + "exp_avg")
            lost = tensor.dtype in ("float16", "bfloat16") and stats.constant and stats.maximum == 0
            if (
                lost
                and moment is not None
                and moment.statistics is not None
                and moment.statistics.largest > 0
            ):
                largest = moment.statistics.largest
                yield self.finding(
                    f"{tensor.name} is zero everywhere in {tensor.dtype} while exp_avg reaches {largest:.3g}: the "
                    "squares of the gradients were lost, and the update is divided by eps alone",
                    fix="keep optimizer state and master weights in float32; start the optimizer anew from here",
                    evidence={"tensor": tensor.name, "dtype": tensor.dtype, "exp_avg_largest": largest},
                    file=tensor.file,
                )

    def _negative(self, tensor: Tensor, lowest: float, count: int | None) -> Finding:
        return self.finding(
            f"{tensor.name} is negative at {count} places (lowest {lowest:.3g}): it is an average of squares, so the "
            "file is damaged or was edited",
            fix="take the optimizer state from a healthy checkpoint, or start the optimizer anew",
            evidence={"tensor": tensor.name, "negative": count, "lowest": lowest},
            file=tensor.file,
            cause="CHECKPOINT_CORRUPT",
        )
