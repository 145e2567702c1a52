"""NUM011: an infinite or NaN value multiplied by zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told

_LOGS, _NEAR = ("log", "log2", "log10"), 3
_FILLED = "fill the input before the product: torch.where(mask, x, 0) or x.masked_fill(~mask, 0)"
_OF_LOG = (
    "p * log(p) is 0 where p is 0: torch.xlogy(p, p); a mask that multiplies: fill what the logarithm is taken of, "
    "torch.log(x.masked_fill(~mask, 1))"
)


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
        for born in judged(subject, Kind.ZERO_TIMES_INF):
            of_log = any(operand.made_by(*_LOGS, within=_NEAR) for operand in born.birth.operands)
            met = "the logarithm of zero, and 0 * -inf is NaN" if of_log else "NaN or Inf, and 0 * inf is NaN"
            masked = " (a mask that multiplies)" if born.how.word and not of_log else ""
            yield self.finding(
                f"{behind(born.birth)}: a zero met {met}{masked}",
                fix=_OF_LOG if of_log else _FILLED,
                **told(born, "zero_times_bad"),
            )
