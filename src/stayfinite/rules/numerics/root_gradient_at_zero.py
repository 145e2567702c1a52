"""NUM017: the gradient of a root or power at zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import at, behind, births_by_weight, counted, facts, source_of, tensors

_ROOTS = ("sqrt", "rsqrt", "pow", "float_power", "linalg_vector_norm", "norm", "cdist", "pairwise_distance", "std",
          "dist", "hypot", "cdist_forward", "euclidean_dist", "linalg_norm", "abs")  # fmt: skip


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
        for birth, weight in births_by_weight(subject):
            if birth.phase != "backward" or behind(birth) not in _ROOTS:
                continue
            root = _at_zero(birth)
            if root is None:
                continue
            zeros, operand = root
            exponent = _exponent(birth)
            power = f" with exponent {exponent:g}" if exponent is not None else ""
            # A gradient that arrives through a `where` comes from a branch that was not taken.
            masked = any(o.made_by("where", "masked_fill", within=4) for o in birth.operands)
            # Without a zero in the value, an enormous slope is still the same mistake, but less certain.
            certain = 0.93 if zeros else 0.8
            where = (
                counted(zeros, "zero") if zeros else f"values down to {operand.smallest_positive or 0:.2g}"
            )
            yield self.finding(
                f"the gradient of {behind(birth)}{power} at {where} of {source_of(operand)} is not finite",
                fix=_fix(birth),
                evidence={
                    "saved": tensors(*birth.saved),
                    **facts(birth, "exponent", "zero_base", "boundary"),
                },
                confidence=(certain - 0.15 if masked else certain) * weight,
                **at(birth),
            )


def _fix(birth: TracedBirth) -> str:
    if _of_probabilities(birth):
        return (
            "work in log space: torch.logsumexp(beta * (log_p + log_q), -1) with log_softmax, as "
            "stayfinite.ops.beta_mutual_information does; a clamp stops the gradient where it is needed"
        )
    return "add eps under the root, (x + eps).sqrt(), or clamp the base away from 0 before the power"


def _of_probabilities(birth: TracedBirth) -> bool:
    """The base of the power is a softmax, or a product of several."""
    base = (*birth.saved, *birth.operands)
    return behind(birth) in ("pow", "float_power") and any(
        o.made_by("softmax", "_softmax", "sigmoid", within=4) is not None for o in base
    )


def _at_zero(birth: TracedBirth) -> tuple[int, Operand] | None:
    """How many elements of the root's value (or base) are zero, and the tensor that says so."""
    op = behind(birth)
    exponent = _exponent(birth)
    if exponent is not None and exponent >= 1:
        return None
    kept = (
        birth.saved_tensor("self", "input") if op in ("pow", "float_power") else birth.saved_tensor("result")
    )
    kept = kept or birth.saved_tensor("self", "result", "x1", "input")
    if kept is None:
        kept = next((o for o in birth.operands if o.summary.zeros), None)
    zeros = int(birth.fact("zero_base") or birth.fact("boundary") or birth.fact("zero_rows"))
    if kept is None:
        return None
    zeros = zeros or kept.summary.zeros
    if zeros:
        return zeros, kept
    steep = kept.smallest_positive is not None and kept.smallest_positive < 1e-15
    return (0, kept) if steep and birth.transition in ("amplified", "finite->inf") else None


def _exponent(birth: TracedBirth) -> float | None:
    """The exponent of the forward power; its derivative is born in a power with one less."""
    if behind(birth) not in ("pow", "float_power"):
        return None
    exponent = birth.facts.get("exponent", birth.scalars.get("exponent"))
    if not isinstance(exponent, (int, float)):
        return None
    return float(exponent) + 1 if birth.op in ("pow", "float_power") else float(exponent)
