"""NUM021: a value beyond the range of float16."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import LARGEST, behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import bad_values, judged, told

_WIDER = "run this op in float32 or bfloat16, or scale before it (divide first, then sum or cast)"
_UNDER_A_SCALE = (
    "let scaler.step(optimizer) leave such a step out (update() then lowers the scale); if it comes back at a scale "
    "near 1, run this op in float32 or bfloat16"
)


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
        for born in judged(subject, Kind.HALF_OVERFLOW):
            birth, value = born.birth, born.how.more["float32_absmax"]
            shown = f"{value:.3g}" if value is not None else "more"
            scaled = birth.phase == "backward" and bool(subject.run.scalers)
            yield self.finding(
                f"{behind(birth)} overflowed {birth.dtype}: {shown} in float32, the limit is "
                f"{LARGEST.get(birth.dtype, 65504):.5g} ({bad_values(birth)} of {birth.birth.numel} values)",
                fix=_UNDER_A_SCALE if scaled else _WIDER,
                **told(born, "limit", "from_dtype", "to_dtype", autocast=birth.autocast),
            )
