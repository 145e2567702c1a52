"""NUM011: an infinite or NaN value multiplied by zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import (
    at,
    behind,
    births_by_weight,
    by_autograd,
    facts,
    looks_like_mask,
    tensors,
)

_PRODUCTS = ("mul", "mm", "bmm", "matmul", "addmm", "baddbmm", "dot", "mv", "einsum", "convolution", "addcmul",
             "scaled_dot_product_attention", "scaled_dot_product_flash_attention_for_cpu", "sum", "linear",
             "scaled_dot_product_attention_math", "lerp")  # fmt: skip


class ZeroTimesInfinity(Rule[FailedStep]):
    """A zero that was meant to silence a value met an infinity or NaN, and the product is NaN.

    ## What it finds
    Products (elementwise, matrix, attention, convolution) in which a zero meets NaN or Inf: masks applied by
    multiplication, attention weights of 0 on a padded value that is not finite, the gradient of those.

    ## Why it is bad
    0 * inf and 0 * NaN are NaN. A mask that multiplies cannot remove a bad value, it can only pass it on.

    ## Example
    `(torch.log(p) * mask).sum()` where p is 0 exactly at the masked places

    ## The fix
    Make the input harmless before the function: `torch.log(p.masked_fill(~mask, 1.0))`, or `torch.where` on the
    *inputs* of the product.

    ## The popular fix that does not work
    Masking afterwards, or the attention mask alone: a weight of 0 still multiplies the bad value.

    ## References
    pytorch/pytorch#101967, ai2cm/ace#949
    """

    code = "NUM011"
    name = "zero-times-infinity"
    cause = "INF_TIMES_ZERO"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if behind(birth) not in _PRODUCTS or not birth.fact("zero_times_bad"):
                continue
            masked = any(looks_like_mask(operand) for operand in birth.operands)
            if by_autograd(birth):
                certain = 0.55
            elif masked:
                # Even as a second birth it is a mistake of its own: the mask was trusted to remove the first.
                certain = 0.92 if birth is subject.birth else 0.84 / weight
            else:
                certain = 0.8
            zeros = int(birth.fact("zero_times_bad"))
            yield self.finding(
                f"{behind(birth)}: {zeros} zero{'s' if zeros != 1 else ''} met NaN or Inf, and 0 * inf is NaN"
                + (" (a mask that multiplies)" if masked else ""),
                fix="fill the input before the product: torch.where(mask, x, 0) or x.masked_fill(~mask, 0)",
                evidence={"inputs": tensors(*birth.operands), **facts(birth, "zero_times_bad")},
                confidence=certain * weight,
                **at(birth),
            )
