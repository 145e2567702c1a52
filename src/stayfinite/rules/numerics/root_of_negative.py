"""NUM013: a root of a negative number."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import counted, is_given, judged, source_of, span, told

_EIGENVALUES = ("linalg_eigh", "linalg_eigvalsh")


_MAY_ROUND_BELOW = (
    "sub",
    "rsub",
    "mm",
    "bmm",
    "matmul",
    "addmm",
    "baddbmm",
    "var",
    "std",
    "dot",
    "conv2d",
    "convolution",
)
_HIDDEN = "`abs` or `clamp` around it: the step is finite then, and learns from a sample of which the size is wrong."
_LEFT_OUT = (
    "the loss is finite: what is NaN was left out of it by a comparison or a choice, and the gradient brings it back. "
    "Make the op safe where it is not used: torch.sqrt(x.clamp_min(1e-12)), or a double where"
)


_STATISTIC = (
    "find out what wrote a negative running_var (a load, an average of models, arithmetic on buffers); "
    "reset_running_stats() and some training batches give a sound one"
)


class RootOfNegative(Rule[FailedStep]):
    """A square root or fractional power was taken of a negative number.

    ## What it finds
    sqrt, rsqrt and powers with a fractional exponent whose base is negative, acosh below 1, and a batch norm in
    evaluation whose running variance is negative.

    ## Why it is bad
    The result is NaN. The value under a root is a squared distance, a variance or a discriminant; negative means
    that the formula or the data left its domain, or that `E[x^2] - E[x]^2` was eaten by rounding.

    ## Example
    `torch.sqrt(1 - (p * p).sum(-1))` for a camera outside of the unit sphere

    ## The fix
    Repair what is under the root: normalise the poses, compute the variance as `((x - mean)**2).mean()`, compute
    distances with `torch.cdist`. If only rounding makes it negative, clamp *with a positive floor* under the root.

    ## The popular fix that does not work
    `sqrt(abs(x))` or `sqrt(x.clamp(min=0))`: the first computes another geometry, the second has an infinite
    gradient at 0.

    ## References
    Kai-46/nerfplusplus#10
    """

    code = "NUM013"
    name = "root-of-negative"
    cause = "DOMAIN_VIOLATION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.ROOT_OF_NEGATIVE):
            operand, power = born.how.operand, born.birth.op in ("pow", "float_power")
            statistic = born.birth.op.startswith("native_batch_norm")
            yield self.finding(
                f"a batch norm in evaluation took the root of {counted(born.how.count, 'negative value')} in "
                f"its running variance, {source_of(operand)} ({span(operand)})"
                if statistic
                else f"{born.birth.op} of {counted(born.how.count, 'negative value')} in {source_of(operand)} "
                f"({span(operand)})"
                + (": a power with a fractional exponent has no value there" if power else ""),
                fix=_STATISTIC
                if statistic
                else _LEFT_OUT
                if _is_left_out(subject, born.birth)
                else _fix(operand, power=power),
                avoid=_HIDDEN if _is_label(operand) else None,
                **told(born, "outside", "negative_base", "exponent", "fractional"),
            )


def _is_left_out(step: FailedStep, birth: TracedBirth) -> bool:
    """The loss is finite although a value in the forward pass is not: a comparison or a choice left it out."""
    return step.trigger == "gradient" and birth.phase == "forward" and bool(birth.hidden_by)


def _is_label(operand: Operand | None) -> bool:
    """Given, and not the outcome of a subtraction or a decomposition, which may have rounded it below 0."""
    return (
        operand is not None
        and is_given(operand)
        and operand.made_by(*_MAY_ROUND_BELOW, *_EIGENVALUES, within=6) is None
    )


def _fix(operand: Operand | None, *, power: bool) -> str:
    if operand is not None and operand.made_by(*_EIGENVALUES, within=3) is not None:
        return (
            "eigenvalues of a matrix without full rank are 0, and by rounding a little less: put a floor under them "
            "(values.clamp_min(eps)), or add eps to the diagonal of the matrix"
        )
    if _is_label(operand):
        return (
            "these values were given, and no model computed them: a size, count or target that is negative is "
            "wrong where the samples are made. Check them there, and repair or leave out the samples"
        )
    if power:
        return "make the base positive first: x.clamp_min(eps) ** p, or x.abs() ** p * x.sign()"
    return (
        "repair the value under the root (normalise the geometry, two-pass variance, torch.cdist); if only rounding "
        "makes it negative, clamp it to a small positive floor"
    )
