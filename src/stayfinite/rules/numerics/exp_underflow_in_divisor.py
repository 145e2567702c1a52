"""NUM004: a softmax written by hand whose exponentials all underflow to zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, span, told


class ExpUnderflowInDivisor(Rule[FailedStep]):
    """A sum of exponentials is zero or nearly so, and something is divided by it.

    ## What it finds
    A division by zero whose divisor is a sum (or mean, or matrix product) of exponentials: every term underflowed. Also
    one by a sum that is so small (1e-12 and less) that the quotient, or its gradient, leaves the range of the dtype.

    ## Why it is bad
    0/0 is NaN. On paper a sum of exponentials is positive; in float32 exp(-104) is 0, in float16 exp(-18) is.

    ## Example
    `w = torch.exp(-distance); w = w / w.sum(-1, keepdim=True)` with all distances above 104

    ## The fix
    `torch.softmax(-distance, -1)`: it subtracts the maximum first, so one term is always 1.

    ## The popular fix that does not work
    `w / (w.sum() + 1e-16)`: the weights are then all zero instead of a distribution, and the gradient is too.

    ## References
    pyg-team/pytorch_geometric#53
    """

    code = "NUM004"
    name = "exp-underflow-in-divisor"
    cause = "EXP_OVERFLOW"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.EXP_UNDERFLOW):
            smallest = born.how.more.get("smallest")
            which = (
                f"{counted(born.how.count, 'sum')} of exponentials is exactly 0"
                if smallest is None
                else f"a sum of exponentials is as small as {smallest:.3g}"
            )
            yield self.finding(
                f"{which} and divides ({span(born.how.operand)})",
                fix="use torch.softmax (or subtract the maximum before exp), so that one term is always 1; "
                "where products of exponentials divide, compute in log space, with logsumexp",
                **told(born),
            )
