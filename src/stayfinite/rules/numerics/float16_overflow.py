"""NUM021: a value beyond the range of float16."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.rules.evidence import LARGEST, at, behind, births_by_weight, facts, tensors

# Functions that have no business near 65504: their own rules say what to do about them.
_OWN_RULE = {"exp": 0.78, "exp2": 0.78, "expm1": 0.78, "sinh": 0.78, "cosh": 0.78, "div": 0.8, "rsqrt": 0.7}


class Float16Overflow(Rule[FailedStep]):
    """A value went beyond 65504, the largest float16 number; in float32 the same op on the same inputs is finite.

    ## What it finds
    Births of infinity in float16 (rarely bfloat16) whose op, repeated in float32 on the same inputs, stays finite;
    and casts of larger numbers to float16.

    ## Why it is bad
    The model and the data are fine, only the number format is too small: sums over many workers, squares of
    activations, attention scores without scaling, norms of large gradients. The next subtraction or softmax makes
    NaN of the infinity.

    ## Example
    `G.to(torch.float16)` before dividing by the norm; a sum of 256 float16 gradients of 400 each

    ## The fix
    bfloat16 where the hardware has it; else this op in float32 (`with torch.autocast(..., enabled=False)`), or
    scale before the op instead of after (divide by the world size before summing).

    ## The popular fix that does not work
    Clamping the activations to 65504: the gradient of the clamped places is 0 and the rest is wrong. A lower loss
    scale cannot help a forward pass.

    ## References
    horovod/horovod#1699, deepspeedai/DeepSpeed#8533
    """

    code = "NUM021"
    name = "float16-overflow"
    cause = "FP16_OVERFLOW"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if birth.transition not in ("finite->inf", "finite->nan") or not _only_too_small(birth):
                continue
            value = birth.float32.absmax if birth.float32 is not None else _largest_input(birth)
            shown = f"{value:.3g}" if value is not None else "more"
            yield self.finding(
                f"{behind(birth)} overflowed {birth.dtype}: {shown} in float32, the limit is "
                f"{LARGEST.get(birth.dtype, 65504):.5g} "
                f"({birth.birth.inf + birth.birth.nan} of {birth.birth.numel} values)",
                fix="run this op in float32 or bfloat16, or scale before it (divide first, then sum or cast)",
                evidence={
                    "inputs": tensors(*birth.operands),
                    "float32_absmax": value,
                    "autocast": birth.autocast,
                    "loss_scale": birth.scaled_by,
                    **facts(birth, "limit", "from_dtype", "to_dtype"),
                },
                confidence=_OWN_RULE.get(behind(birth), 0.92) * weight,
                **at(birth),
            )


def _only_too_small(birth: TracedBirth) -> bool:
    """Whether the format alone is at fault."""
    if not birth.is_half:
        return False
    if birth.facts.get("zero_divisors") or birth.fact("outside") or birth.fact("boundary"):
        return False
    if birth.op in ("to_copy", "copy"):
        largest = _largest_input(birth)
        return largest is not None and largest > LARGEST[birth.dtype] and largest < 3.4e38
    return birth.float32 is not None and birth.float32.finite


def _largest_input(birth: TracedBirth) -> float | None:
    found = [operand.absmax for operand in birth.operands if operand.absmax is not None]
    return max(found) if found else None
