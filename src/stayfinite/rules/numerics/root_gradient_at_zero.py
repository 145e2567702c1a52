"""NUM017: the gradient of a root or power at zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Judged, Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, source_of, told


class RootGradientAtZero(Rule[FailedStep]):
    """The gradient of a square root, a fractional power or a distance was taken where its value is zero.

    ## What it finds
    A gradient that becomes infinite or NaN in the backward formula of sqrt, of pow with an exponent below 1, or
    of a norm, where the forward value is exactly 0.

    ## Why it is bad
    The forward pass is perfect: sqrt(0) is 0. Its slope is infinite, and infinity times the zero gradient that
    usually arrives there is NaN, in every weight before it.

    ## Example
    `loss = F.relu(1 - z.var(0).sqrt()).mean()` with one constant feature

    ## The fix
    Put eps *inside* the root: `(z.var(0) + 1e-4).sqrt()`; `x.clamp_min(1e-4).pow(0.5)` for powers. Powers of
    products of probabilities belong into log space: `torch.logsumexp(beta * (log_p + log_q), -1)`.

    ## The popular fix that does not work
    eps outside, `z.var(0).sqrt() + 1e-8`: the slope of the root at 0 is infinite whatever is added afterwards. A
    clamp of a base that is a product of probabilities: the gradient is exactly 0 for the samples that need it.

    ## References
    pytorch/pytorch#4320, jzi040941/PercepNet#37
    """

    code = "NUM017"
    name = "root-gradient-at-zero"
    cause = "SQRT_POW_GRAD_AT_ZERO"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.ROOT_GRADIENT_AT_ZERO):
            operand, zeros, exponent = born.how.operand, born.how.count, born.how.more.get("exponent")
            power = f" with exponent {exponent:g}" if exponent is not None else ""
            smallest = (operand.smallest_positive if operand is not None else None) or 0.0
            where = counted(zeros, "zero") if zeros else f"values down to {smallest:.2g}"
            yield self.finding(
                f"the gradient of {behind(born.birth)}{power} at {where} of {source_of(operand)} is not finite",
                fix=_fix(born),
                **told(born, "exponent", "zero_base", "boundary"),
            )


def _fix(born: Judged) -> str:
    """A power of a product of probabilities has a log-space form; any other base is kept away from 0."""
    op, base = behind(born.birth), born.how.operand
    if op not in ("pow", "float_power"):
        return "add eps under the root, (x + eps).sqrt(); outside of the root it does not help"
    product = base is not None and base.made_by("mul", "bmm", "mm", within=2) is not None
    if product and base is not None and base.made_by("softmax", within=4) is not None:
        return (
            "work in log space: torch.logsumexp(beta * (log_p + log_q), -1) with log_softmax, as "
            "stayfinite.ops.beta_mutual_information does; a clamp stops the gradient where it is needed"
        )
    return "keep the base away from 0, (x + eps) ** gamma or x.clamp_min(eps) ** gamma, or use an exponent of 1 or more"
