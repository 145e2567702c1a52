"""NUM025: values that have grown until even float32 cannot square them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import at, births_by_weight, tensors

_LIMIT: Final = 1.8e19  # the root of the largest float32; bfloat16 has the same range
_SQUARES = ("native_layer_norm", "native_group_norm", "native_batch_norm", "fused_rms_norm", "rms_norm", "norm",
            "linalg_vector_norm", "var", "var_mean", "std", "std_mean", "pow", "square", "mse_loss", "mul",
            "mm", "bmm", "addmm", "convolution", "scaled_dot_product_attention")  # fmt: skip
_ORDINARY_INPUT = 1e6
_MAKES_LARGE_NUMBERS = ("div", "reciprocal", "rsqrt", "exp", "pow", "addcdiv")
_BACK, _JUMP = 3, 1e8


class GrownBeyondRange(Rule[FailedStep]):
    """Values inside the model have grown beyond 1.8e19, and squaring them left the range of float32.

    ## What it finds
    A norm, a normalisation, a variance or a product in float32 or bfloat16 whose inputs are finite but larger than
    1.8e19, although the batch was of ordinary size: they have grown on their way through the layers.

    ## Why it is bad
    Nothing bounds them: a residual that every layer enlarges, mixing weights that may exceed 1. A normalisation
    before each branch hides the growth from the loss until its own square overflows, and then every batch fails
    although all weights are finite.

    ## Example
    `x = mixing @ x + branch(norm(x))` over 48 layers, with a learnt `mixing` of norm 2.5

    ## The fix
    Bound what grows: mixing weights that sum to 1 (`stayfinite.ops.sinkhorn`), a normalised or scaled residual, a
    lower rate; and go back to weights from before the growth.

    ## The popular fix that does not work
    float32 in the place of bfloat16: both end at 3.4e38. Skipping the batch: the next one fails as well.

    ## References
    lucidrains/hyper-connections#4, allenai/OLMo#797
    """

    code = "NUM025"
    name = "grown-beyond-range"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        given = max((o.absmax or 0.0 for o in subject.batch if not o.is_integer), default=0.0)
        if given > _ORDINARY_INPUT:
            return  # the data itself is out of scale
        for birth, weight in births_by_weight(subject):
            grown = _grown(birth)
            if grown is None:
                continue
            shown = f" (the batch itself: up to {given:.3g})" if given else ""
            yield self.finding(
                f"{birth.op} met values up to {grown.absmax:.3g}{shown}; above {_LIMIT:.2g} a square leaves the "
                f"range of float32, and of bfloat16 too",
                fix="bound what grows (mixing weights that sum to 1, a scaled residual), lower the rate, and go back "
                "to weights from before the growth",
                evidence={"inputs": tensors(*birth.operands), "absmax": grown.absmax, "batch_absmax": given},
                confidence=(0.85 if _gradually(grown) else 0.4) * weight,
                **at(birth),
            )
            return


def _grown(birth: TracedBirth) -> Operand | None:
    """The operand whose square is too large, if it was computed in this step and is no parameter."""
    if birth.phase != "forward" or birth.op not in _SQUARES or birth.dtype not in ("float32", "bfloat16"):
        return None
    if birth.transition not in ("finite->inf", "finite->nan"):
        return None
    large = [o for o in birth.operands if o.origin == "activation" and (o.absmax or 0.0) > _LIMIT]
    return max(large, key=lambda operand: operand.absmax or 0.0, default=None)


def _gradually(operand: Operand) -> bool:
    """The values were large some ops ago already: no single division, power or factor made them so."""
    before = max((p.absmax or 0.0 for p in operand.producers if p.distance >= _BACK), default=0.0)
    return before * _JUMP >= (operand.absmax or 0.0) and operand.made_by(*_MAKES_LARGE_NUMBERS) is None
