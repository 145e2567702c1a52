"""Legal ops on numbers that are too large: exponentials, powers, half precision, and plain growth."""

from __future__ import annotations

from stayfinite.findings.mechanism.kind import Kind, Mechanism
from stayfinite.findings.mechanism.operands import LARGEST, SANITISERS, by_autograd, exponent_of
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth

_EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh", "i0", "special_i1")
_POWERS = ("pow", "float_power", "cumprod", "prod")
_LARGE_EXPONENT = 8.0
# Ops that are wrong only where their input is: everything else is legal and merely got too large.
_DOMAINS = ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "acos", "asin", "atanh", "div", "reciprocal", "softmax",
            "xlogy", "log_softmax", "logsumexp", "std", "mean", "ctc_loss")  # fmt: skip


def exponential(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """exp beyond the range of its dtype; a power that is an exponential in disguise."""
    if by_autograd(birth) or birth.transition != "finite->inf":
        return None
    operand = birth.operand("self", "input") or next(iter(birth.operands), None)
    if birth.op in _EXPONENTIALS:
        # exp has no other way to make Inf of finite numbers; the fact says how many went over.
        return Mechanism(Kind.EXP_OVERFLOW, operand, int(birth.fact("beyond")) or birth.birth.inf)
    if birth.op in _POWERS and birth.dtype != "float16" and not birth.fact("zero_base"):
        exponent = exponent_of(birth)
        if exponent is None or abs(exponent) > _LARGE_EXPONENT:
            return Mechanism(Kind.POWER_OVERFLOW, operand)
    return None


def half(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """The format alone is at fault: in float32 the same op on the same inputs is finite."""
    if birth.transition not in ("finite->inf", "finite->nan") or not birth.is_half:
        return None
    if birth.facts.get("zero_divisors") or birth.fact("outside") or birth.fact("boundary"):
        return None
    largest = max((o.absmax for o in birth.operands if o.absmax is not None), default=None)
    if birth.op in ("to_copy", "copy"):
        if largest is None or not LARGEST[birth.dtype] < largest < 3.4e38:
            return None
        return Mechanism(Kind.HALF_OVERFLOW, more={"float32_absmax": largest})
    if birth.float32 is None or not birth.float32.finite:
        return None
    return Mechanism(Kind.HALF_OVERFLOW, more={"float32_absmax": birth.float32.absmax})


def grown(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A legal op overflowed because its inputs are too large."""
    if any(producer.name in SANITISERS for producer in birth.hidden_by):
        return None
    # Inf and -Inf in one sum of products, or in a layer norm, are NaN: still a mere overflow. A mean is NaN of nothing
    # only: Inf is its sum gone beyond the range.
    domain = birth.op in _DOMAINS and not (birth.op == "mean" and birth.transition == "finite->inf")
    legal = birth.transition in ("finite->inf", "finite->nan") and not domain
    operands = birth.saved if birth.phase == "backward" and birth.saved else birth.operands
    largest = max(operands, key=lambda o: o.absmax or 0.0, default=None)
    return Mechanism(Kind.GROWN, largest) if legal else None


def is_spent(scale: float) -> bool:
    """A loss scale so small that its inverse, which gradients are multiplied with, is beyond float32."""
    return scale <= 2.0**-128


def inverse_of_a_spent_scale(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A loss scale that has run out has no inverse in float32: why it fell is the question, not this number."""
    spent = any(is_spent(scaler.scale) for scaler in step.run.scalers)
    made = birth.birth.numel == 1 and birth.op.strip("_") in ("to_copy", "reciprocal")
    if spent and made and any(operand.dtype == "float64" for operand in birth.operands):
        return Mechanism(Kind.UNKNOWN)
    return None
