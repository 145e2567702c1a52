"""NUM015: a predicted scale or variance that is zero, negative or collapsing."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import (
    DIVISIONS,
    at,
    behind,
    births_by_weight,
    by_autograd,
    counted,
    divisor_of,
    facts,
    source_of,
    span,
    tensors,
)
from stayfinite.rules.numerics.log_of_zero import argument_of_log, on_the_edge

_POSITIVE_FORMS = (
    "sigmoid",
    "softplus",
    "exp",
    "elu",
    "relu",
    "square",
    "abs",
    "clamp",
    "clamp_min",
    "softmax",
)
_SPECIAL = ("lgamma", "digamma", "polygamma", "standard_gamma", "sample_dirichlet", "mvlgamma", "zeta",
            "dirichlet_grad", "standard_gamma_grad")  # fmt: skip
_NO_SCALE = ("sum", "mean", "std", "var", "amax", "max", "sub", "mv", "mm", "bmm", "softmax")
_COMPLAINTS = (
    "expects std >= 0",
    "expects all elements of std >= 0",
    "var has negative entry",
    "to satisfy the constraint",
    "sum of probabilities <= 0",
    "Invalid parameters: expects",
    "Expected p_in >= 0",
    "contains either `inf`, `nan` or element < 0",
)


class ScaleNotPositive(Rule[FailedStep]):
    """A scale or variance that the model predicts is zero or negative, or has shrunk until its quotient overflows.

    ## What it finds
    A density computed with a scale that is not positive: a division by (and logarithm of) the same predicted
    tensor, gamma functions at zero, and the errors that torch.distributions raises for finite parameters.

    ## Why it is bad
    A likelihood rewards a smaller variance wherever the fit is perfect, without end: the scale runs to 0, and
    then log(0) and 0/0 come in the same line. It is the loss that asks for it, so it comes back at any rate.

    ## Example
    `0.5 * torch.log(s) + 0.5 * (y - mu) ** 2 / s` with `s = torch.sigmoid(h)` and constant targets

    ## The fix
    Give the scale a floor (`softplus(h) + 1e-3`, `F.gaussian_nll_loss` with its eps), or predict a log-scale and
    bound it: `log_std.clamp(-5, 2)`.

    ## The popular fix that does not work
    Gradient clipping and a smaller rate delay it. `validate_args=False` removes the message, not the zero.

    ## References
    motokimura/PyTorch_Gaussian_YOLOv3#23
    """

    code = "NUM015"
    name = "scale-not-positive"
    cause = "DIST_PARAM"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        birth = subject.birth
        if subject.failure is not None and (birth is None or birth.transition == "raised"):
            yield from self._complaint(subject.failure)
        for birth, weight in births_by_weight(subject):
            judged = self._judge(subject, birth)
            if judged is None:
                continue
            scale, certain = judged
            yield self.finding(
                f"{behind(birth)} with a scale that is not positive: {counted(scale.summary.zeros, 'zero')} and "
                f"{counted(scale.negatives, 'negative value')} in {source_of(scale)} ({span(scale)})",
                fix="give the scale a floor (F.softplus(h) + 1e-3) or bound its logarithm: log_std.clamp(-5, 2)",
                evidence={
                    "inputs": tensors(scale),
                    **facts(birth, "zero_divisors", "divisor_is", "boundary"),
                },
                confidence=certain * weight,
                **at(birth),
            )

    def _complaint(self, failure: Failure) -> Iterator[Finding]:
        if any(text in failure.text for text in _COMPLAINTS) and not _about_nan(failure):
            first = failure.text.strip().splitlines()[0]
            yield self.finding(
                f"a parameter of a distribution is not legal: {first}",
                fix="give the parameter a legal form (F.softplus(h) + 1e-3 for a scale, logits for probabilities)",
                evidence={"error": failure.text},
                confidence=0.9,
                file=failure.place.file,
                line=failure.place.line,
            )

    def _judge(self, step: FailedStep, birth: TracedBirth) -> tuple[Operand, float] | None:
        op = behind(birth)
        if op in _SPECIAL:
            operand = next((o for o in birth.operands if o.summary.zeros or o.negatives), None)
            return (operand, 0.85) if operand is not None else None
        if by_autograd(birth):
            return None
        logged = argument_of_log(birth)
        if logged is not None and on_the_edge(birth, logged):
            return (logged, 0.93) if _also_divides(step, logged) else None
        if birth.op not in DIVISIONS:
            return None
        scale = divisor_of(birth)
        if (
            scale is None
            or not scale.summary.zeros
            or birth.facts.get("divisor_is") in ("count", "range", "norm")
        ):
            return None
        if birth.phase == "optimizer" or scale.made_by(*_NO_SCALE, within=3):
            return None
        if scale.requires_grad and (scale.origin == "parameter" or scale.made_by(*_POSITIVE_FORMS, within=4)):
            return scale, 0.93 if _also_logged(step, scale) else 0.8
        return None


def _about_nan(failure: Failure) -> bool:
    """Whether the error shows NaN among the values it complains about; its own wording does not count."""
    return "nan" in failure.text.replace("`nan`", "").lower()


def _same(logged: Operand, divisor: Operand) -> bool:
    """Whether one is the other, or a power or multiple of it, as far as names and producers tell."""
    if logged.name is not None and logged.name == divisor.name:
        return True
    return _made_from(logged, divisor) or _made_from(divisor, logged)


def _made_from(one: Operand, other: Operand) -> bool:
    """Whether `other` is what `one` is, or was made of it by arithmetic alone."""
    if not one.producers or not other.producers:
        return False
    made = one.producers[0]
    plain = other.producers[0].name in ("mul", "pow", "square", "add")
    return any(
        (p.op, p.file, p.line) == (made.op, made.file, made.line)
        for p in other.producers
        if p.distance == 1 or (p.distance <= 3 and plain)
    )


def _also_divides(step: FailedStep, logged: Operand) -> bool:
    return any(
        (divisor := divisor_of(birth)) is not None and _same(logged, divisor)
        for birth in (*step.births, *step.benign)
        if birth.op in DIVISIONS and not by_autograd(birth)
    )


def _also_logged(step: FailedStep, scale: Operand) -> bool:
    return any(
        (logged := argument_of_log(birth)) is not None and _same(logged, scale)
        for birth in (*step.births, *step.benign)
    )
