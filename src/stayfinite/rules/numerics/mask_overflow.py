"""NUM009: additive masks whose sum or cast overflows."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import LARGEST, at, births_by_weight, by_autograd, reaches, span, tensors

_SOFTMAX = ("softmax", "logsumexp", "attention", "log_softmax")


class MaskOverflow(Rule[FailedStep]):
    """An additive mask near the most negative number of its dtype overflowed to minus infinity.

    ## What it finds
    A sum (or cast, or product) with finite operands whose result is -inf, where an operand holds constants near
    the most negative number of the dtype (`torch.finfo(dtype).min`, -1e9 cast to float16).

    ## Why it is bad
    `finfo.min` was chosen to stay finite, so that a fully masked row gives a uniform softmax instead of NaN. Two
    such masks added are -inf again, and the protection is gone exactly where it is needed.

    ## Example
    `mask = causal + key_padding` with both made of `torch.finfo(torch.bfloat16).min`

    ## The fix
    Combine the boolean masks first (`allow = causal & valid`), then make one additive mask of the result.

    ## The popular fix that does not work
    -inf everywhere: rows that are masked throughout are then NaN by design.

    ## References
    NVIDIA-NeMo/Automodel#2658
    """

    code = "NUM009"
    name = "mask-overflow"
    cause = "MASK_VALUE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            mask = None if by_autograd(birth) else _overflowing_mask(birth)
            if mask is None:
                continue
            certain = 0.93 if reaches(subject, *_SOFTMAX) else 0.6
            yield self.finding(
                f"{birth.op} of finite masks gave {birth.birth.inf} infinities: an operand ({span(mask)}) is already "
                f"near the limit of {birth.dtype}",
                fix="combine boolean masks with & first, then write one additive mask: zeros.masked_fill(~allow, min)",
                evidence={"inputs": tensors(*birth.operands), "largest": LARGEST.get(birth.dtype)},
                confidence=certain * weight,
                **at(birth),
            )
        failure = subject.failure
        if failure is not None and "without overflow" in failure.text and "converted to type" in failure.text:
            yield self.finding(
                f"a mask value does not fit its dtype: {failure.text}",
                fix="use torch.finfo(x.dtype).min, or boolean masks with F.scaled_dot_product_attention",
                evidence={"error": failure.text},
                confidence=0.9,
                file=failure.place.file,
                line=failure.place.line,
            )


def _overflowing_mask(birth: TracedBirth) -> Operand | None:
    """The operand that was a mask at the limit of the dtype, if the birth is its overflow."""
    limit = LARGEST.get(birth.dtype, 3.4e38)
    if birth.transition != "finite->inf" or birth.output is None or birth.output.neginf == 0:
        return None
    if birth.output.posinf > birth.output.neginf:
        return None
    if birth.op in ("add", "sub", "mul"):
        near = [o for o in birth.operands if (o.summary.min or 0.0) < -0.3 * limit]
        return near[0] if near else None
    if birth.op in ("to_copy", "copy"):
        source = birth.operands[-1] if birth.operands else None
        low = source.summary.min if source is not None else None
        if source is not None and low is not None and low < -limit and source.summary.max is not None:
            return source if source.summary.max <= 0 and source.summary.zeros else None
    return None
