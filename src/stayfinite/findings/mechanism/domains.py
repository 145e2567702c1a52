"""Functions outside of their domain or on its edge: logarithms, roots, inverse functions, scales, an eps that is 0."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind, Mechanism
from stayfinite.findings.mechanism.operands import (
    DIVISIONS,
    behind,
    by_autograd,
    counted_up,
    divisor_of,
    exponent_of,
    vanished_eps,
)
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth

_LOGARITHMS = (
    "log", "log2", "log10", "log1p", "xlogy", "logit", "xlog1py", "special_xlog1py", "special_entr",
)  # fmt: skip
_PROTECTED = ("log", "log2", "log10", "log1p", "div", "reciprocal", "rsqrt", "sqrt", "pow", "xlogy", "logit")
_SPECIAL = ("lgamma", "digamma", "polygamma", "standard_gamma", "sample_dirichlet", "mvlgamma", "zeta",
            "dirichlet_grad", "standard_gamma_grad")  # fmt: skip
_ROOTS = ("sqrt", "rsqrt", "pow", "float_power", "linalg_vector_norm", "norm", "cdist", "pairwise_distance", "std",
          "dist", "hypot", "cdist_forward", "euclidean_dist", "linalg_norm", "abs")  # fmt: skip
_INVERSES = ("acos", "asin", "atanh", "acosh", "erfinv", "special_ndtri", "arccos", "arcsin", "arctanh")
_POWERS = ("pow", "float_power")


def logarithm(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """The logarithm of zero or less; of a scale that also divides; of a frequency."""
    operand = argument_of_log(birth)
    if operand is None:
        return None
    zeros = on_the_edge(birth, operand)
    if zeros and not by_autograd(birth):
        if counted_up(operand):
            return Mechanism(Kind.FREQUENCY_ZERO, operand, operand.summary.zeros)
        if _also_divides(step, operand):
            return Mechanism(Kind.SCALE_NOT_POSITIVE, operand, zeros)
    tiny = birth.phase == "backward" and 0 < (operand.smallest_positive or 1.0) < 1e-37
    if zeros or tiny:
        return Mechanism(Kind.LOG_OF_ZERO, operand, zeros)
    default = 0 if behind(birth) in ("log1p", "logit") else operand.negatives
    outside = int(birth.fact("outside")) if "outside" in birth.facts else default
    return Mechanism(Kind.LOG_OF_NEGATIVE, operand, outside) if outside else None


def root(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A root or a fractional power of a negative number; the gradient of one at zero."""
    if birth.phase == "backward" and behind(birth) in _ROOTS:
        found = _root_at_zero(birth)
        if found is not None:
            return found
    if by_autograd(birth) or birth.birth.nan == 0:
        return None
    operand = birth.operand("self", "input") or (birth.operands[0] if birth.operands else None)
    count = 0
    if birth.op.startswith("native_batch_norm"):
        operand, count = birth.operand("running_var"), int(birth.fact("outside"))
    elif birth.op in ("sqrt", "rsqrt", "lgamma", "digamma"):
        default = operand.negatives if operand and birth.op in ("sqrt", "rsqrt") else 0
        count = int(birth.fact("outside")) if "outside" in birth.facts else default
    elif birth.op in _POWERS and birth.facts.get("fractional"):
        count = int(birth.fact("negative_base"))
    return Mechanism(Kind.ROOT_OF_NEGATIVE, operand, count) if count else None


def inverse_function(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """acos and its like on the edge of their domain or beyond; atan2 at the origin."""
    operand = birth.saved_tensor("self", "input") or birth.operand("self", "input")
    if behind(birth) in _INVERSES:
        boundary, outside = int(birth.fact("boundary")), int(birth.fact("outside"))
        if outside:
            on_edge = f" (and {boundary} on its edge)" if boundary else ""
            return Mechanism(Kind.INVERSE_AT_EDGE, operand, outside, f"outside of its domain{on_edge}")
        at_edge = operand is not None and (operand.absmax or 0.0) >= 1.0
        count = boundary or (birth.birth.nan + birth.birth.inf if at_edge else 0)
        return Mechanism(Kind.INVERSE_AT_EDGE, operand, count, "on the edge of its domain") if count else None
    if behind(birth) in ("atan2", "angle") and birth.phase == "backward":
        operand = operand or next(iter(birth.saved), None)
        if operand is not None and (operand.summary.zeros or (operand.smallest_positive or 1.0) < 1e-8):
            return Mechanism(Kind.INVERSE_AT_EDGE, operand, operand.summary.zeros or 1, "at the origin")
    return None


def special_function(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """Functions of a distribution's parameters that must be positive."""
    if behind(birth) not in _SPECIAL:
        return None
    operand = next((o for o in birth.operands if o.summary.zeros or o.negatives), None)
    if operand is None:
        return None
    return Mechanism(Kind.SCALE_NOT_POSITIVE, operand, operand.summary.zeros + operand.negatives)


def eps_vanished(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """An eps that should have kept the op away from zero is itself zero in the dtype."""
    if behind(birth) not in _PROTECTED:
        return None
    for operand in (divisor_of(birth), *birth.operands, *birth.saved):
        if operand is None or not (operand.summary.zeros or operand.negatives or birth.fact("boundary")):
            continue
        lost = vanished_eps(operand)
        if lost is not None:
            return Mechanism(Kind.EPS_VANISHED, operand, more={"eps": lost[0], "eps_line": lost[1].line})
    return None


def argument_of_log(birth: TracedBirth) -> Operand | None:
    """The tensor whose logarithm is taken; None when the birth is no logarithm."""
    op = behind(birth)
    if op not in _LOGARITHMS:
        return None
    names = ("other",) if op in ("xlogy", "xlog1py", "special_xlog1py") else ("self", "input")
    saved = birth.saved_tensor(*names) if birth.phase == "backward" else None
    return saved or birth.operand(*names) or (birth.operands[-1] if birth.operands else None)


def on_the_edge(birth: TracedBirth, operand: Operand) -> int:
    """How many inputs lie exactly on the edge of the domain."""
    if "boundary" in birth.facts:
        return int(birth.fact("boundary"))
    return 0 if behind(birth) in ("log1p", "logit") else operand.summary.zeros


def also_logged(step: FailedStep, scale: Operand) -> bool:
    """Somewhere in this step the logarithm of the same tensor is bad, too."""
    return any(
        (logged := argument_of_log(birth)) is not None and _same(logged, scale)
        for birth in (*step.births, *step.benign)
    )


def _also_divides(step: FailedStep, logged: Operand) -> bool:
    return any(
        (divisor := divisor_of(birth)) is not None and _same(logged, divisor)
        for birth in (*step.births, *step.benign)
        if birth.op in DIVISIONS and not by_autograd(birth)
    )


def _same(one: Operand, other: Operand) -> bool:
    """Whether one is the other, or a power or multiple of it, as far as names and producers tell."""
    if one.name is not None and one.name == other.name:
        return True
    return _made_from(one, other) or _made_from(other, one)


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


def _root_at_zero(birth: TracedBirth) -> Mechanism | None:
    """The gradient of a root where its value (or base) is zero, or so small that the slope is enormous."""
    power = behind(birth) in _POWERS
    exponent = exponent_of(birth) if power else None
    if exponent is not None and birth.op in _POWERS:
        exponent += 1  # the derivative is born in a power with one less
    if exponent is not None and exponent >= 1:
        return None
    kept = birth.saved_tensor("self", "input") if power else birth.saved_tensor("result")
    kept = kept or birth.saved_tensor("self", "result", "x1", "input")
    kept = kept or next((o for o in birth.operands if o.summary.zeros), None)
    if kept is None:
        return None
    zeros = int(birth.fact("zero_base") or birth.fact("boundary") or birth.fact("zero_rows"))
    zeros = zeros or kept.summary.zeros
    steep = kept.smallest_positive is not None and kept.smallest_positive < 1e-15
    if not zeros and not (steep and birth.transition in ("amplified", "finite->inf")):
        return None
    return Mechanism(
        Kind.ROOT_GRADIENT_AT_ZERO, kept, zeros, more={} if exponent is None else {"exponent": exponent}
    )
