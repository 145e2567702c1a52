"""NUM022: an eps that is zero in its dtype."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import SMALLEST, behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, span, told


class EpsVanishes(Rule[FailedStep]):
    """An eps that should keep a division, a root or a logarithm away from zero is itself zero in the dtype.

    ## What it finds
    A division by zero, a logarithm of zero or a root's gradient at zero, where upstream a small number was added
    or clamped to that rounds to 0 in the dtype the values have there (1e-8 in float16, whose smallest number is
    6e-8).

    ## Why it is bad
    The code looks protected and is not. Under autocast the same line is safe in float32 and unsafe in float16,
    which is why it appears "only with AMP".

    ## Example
    `torch.log(p + 1e-8)` with p in float16; `F.normalize(x.half())`, whose default eps is 1e-12

    ## The fix
    An eps made for the dtype (`torch.finfo(x.dtype).tiny` is the least, 1e-4 for float16), or this expression in
    float32.

    ## The popular fix that does not work
    A still smaller eps, or "the usual 1e-8".

    ## References
    pytorch/pytorch#40497
    """

    code = "NUM022"
    name = "eps-vanishes"
    cause = "EPS_UNDERFLOW"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.EPS_VANISHED):
            operand, more = born.how.operand, born.how.more
            dtype = operand.dtype if operand is not None else born.birth.dtype
            yield self.finding(
                f"eps {more['eps']:g} (line {more['eps_line']}) is 0 in {dtype}, so {behind(born.birth)} met zero "
                f"({span(operand)})",
                fix="use an eps that exists in the dtype (1e-4 for float16), or compute this expression in float32",
                **told(born, smallest=SMALLEST.get(dtype)),
            )
