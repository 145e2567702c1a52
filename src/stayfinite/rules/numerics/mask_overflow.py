"""NUM009: additive masks whose sum or cast overflows."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import LARGEST
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import (
    counted,
    judged,
    only_an_error,
    raised_by_the_optimizer,
    span,
    told,
    told_by_error,
)


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
        for born in judged(subject, Kind.MASK_OVERFLOW):
            birth = born.birth
            yield self.finding(
                f"{birth.op} of finite masks gave {counted(born.how.count, 'Inf')}: an operand "
                f"({span(born.how.operand)}) is already near the limit of {birth.dtype}",
                fix="combine boolean masks with & first, then write one additive mask: zeros.masked_fill(~allow, min)",
                **told(born, largest=LARGEST.get(birth.dtype)),
            )
        failure = only_an_error(subject)
        if (
            failure is not None
            and "without overflow" in failure.text
            and not raised_by_the_optimizer(subject, failure)
        ):
            yield self.finding(
                f"a mask value does not fit its dtype: {failure.text}",
                fix="use torch.finfo(x.dtype).min, or boolean masks with F.scaled_dot_product_attention",
                **told_by_error(failure),
            )
