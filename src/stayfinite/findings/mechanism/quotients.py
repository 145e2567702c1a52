"""Divisions by zero, told apart by what the divisor is."""

from __future__ import annotations

from stayfinite.findings.incident import TensorSummary
from stayfinite.findings.mechanism.domains import also_logged
from stayfinite.findings.mechanism.kind import Kind, Mechanism
from stayfinite.findings.mechanism.operands import (
    CLAMPS,
    DIVISIONS,
    behind,
    by_autograd,
    counted_up,
    divisor_of,
    exponent_of,
    is_energy,
    reaches,
    upstream_of,
)
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import EXPONENTIALS, Operand, Producer, TracedBirth

_SUMS = (
    "sum", "index_add", "scatter_add", "count_nonzero", "mean", "cumsum", "segment_reduce", "scatter_reduce",
)  # fmt: skip
_EXTREMES = ("amax", "max", "amin", "min", "aminmax", "quantile", "kthvalue", "topk", "sort")
_SPREADS = ("std", "var", "std_mean", "var_mean")
_POSITIVE_FORMS = (
    "sigmoid", "softplus", "exp", "elu", "relu", "square", "abs", "clamp", "clamp_min", "softmax",
)  # fmt: skip
_NO_SCALE = ("sum", "mean", "std", "var", "amax", "max", "sub", "mv", "mm", "bmm", "sparse_addmm", "softmax")
_NORMS = ("linalg_vector_norm", "norm", "linalg_norm", "frobenius_norm", "vector_norm", "norm_except_dim",
          "linalg_matrix_norm")  # fmt: skip
_DIVIDING = ("div", "rsqrt", "reciprocal", "cosine_similarity")
_BY_NODE = ("div", "mul", "rsqrt", "reciprocal", "clamp_min", "cosine_similarity", *_NORMS)
_LAYERS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "rms_norm", "fused_rms_norm",
           "weight_norm_interface", "weight_norm", "batch_norm")  # fmt: skip
_SIZED = ("log", "log2", "sqrt", "div", "reciprocal", "pow", "atan")
_RAW = (
    "lift_fresh", "to_copy", "stack", "cat", "clone", "copy", "index", "rand", "randn", "randint", "full",
    "zeros",
)  # fmt: skip
_PRODUCTS = ("mm", "bmm", "matmul", "dot", "mv")
_TINY = 1e-12
_FAR_FROM_ZERO = 1e-6
_RESCALED = ("div", "mul", "add", "to_copy", "clone", "stack", "cat")


def division(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A zero divided; the most telling name for it."""
    divisor = None if by_autograd(birth) else _zero_divisor(birth)
    if divisor is None:
        return None
    kind, zeros = _kind(birth, divisor), divisor.summary.zeros
    statistic = _statistic(birth, divisor)
    learnt = divisor.requires_grad
    one_of = birth.facts.get("one_of")
    if one_of is not None:
        return Mechanism(Kind.SPREAD_OF_ONE, divisor, 1, "by hand", {"one_of": one_of})
    if _variance_by_hand(birth):
        return Mechanism(Kind.SPREAD_OF_ONE, birth.operand("self"), 1, "by hand")
    if statistic == "a range" and not learnt:
        return Mechanism(Kind.CONSTANT_RESCALED, divisor, zeros, statistic)
    if kind == "count":
        return Mechanism(Kind.DIVISION_BY_ZERO, divisor, zeros, kind)
    if statistic == "a standard deviation" and not learnt:
        return Mechanism(Kind.CONSTANT_RESCALED, divisor, zeros, statistic)
    norm = zero_norm(step, birth)
    if norm is not None:
        return norm
    scale = _is_scale(birth, divisor)
    if scale and also_logged(step, divisor):
        return Mechanism(Kind.SCALE_NOT_POSITIVE, divisor, zeros)
    if _sums_exponentials(divisor):
        if _none_underflowed(divisor):
            return Mechanism(Kind.DIVISION_BY_ZERO, divisor, zeros, "empty sum")
        return Mechanism(Kind.EXP_UNDERFLOW, divisor, zeros)
    if statistic in ("a maximum", "an energy") and not learnt:
        return Mechanism(Kind.CONSTANT_RESCALED, divisor, zeros, statistic)
    if birth.op == "div" and reaches(step, "log") and divisor.made_by("softmax", "sigmoid", "exp", within=3):
        return Mechanism(Kind.RATIO_INTO_LOG, divisor, zeros)
    if kind == "sum":
        return Mechanism(Kind.DIVISION_BY_ZERO, divisor, zeros, kind)
    if scale:
        return Mechanism(Kind.SCALE_NOT_POSITIVE, divisor, zeros)
    if statistic is not None:
        return Mechanism(Kind.CONSTANT_RESCALED, divisor, zeros, statistic)
    return Mechanism(Kind.DIVISION_BY_ZERO, divisor, zeros, kind)


def tiny_divisor(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A sum of exponentials that is not quite 0: a quotient by it, or the gradient of that, is beyond its dtype."""
    if behind(birth) not in ("div", "true_divide", "reciprocal") or birth.transition != "finite->inf":
        return None
    divisor = divisor_of(birth)
    if divisor is None or divisor.summary.zeros or not _sums_exponentials(divisor):
        return None
    smallest, divided = divisor.smallest_positive, birth.operand("self")
    too_large = divided is not None and smallest and (divided.absmax or 0.0) * smallest >= 1.0
    if smallest is None or smallest > _TINY or too_large:  # then what is divided has grown, before
        return None
    return Mechanism(Kind.EXP_UNDERFLOW, divisor, more={"smallest": smallest})


def _sums_exponentials(operand: Operand) -> bool:
    sums = ("sum", "mean", "index_add", "scatter_add", "mv", "mm", "bmm", "matmul", "dot", "sparse_addmm")
    exponentials = operand.made_by(*EXPONENTIALS, within=6)
    return exponentials is not None and operand.made_by(*sums, within=6) is not None


def _none_underflowed(operand: Operand) -> bool:
    """Every exponential upstream is far from 0, also times a few others: a sum of 0 had nothing to add up."""
    made = [p.least for p in operand.producers if p.distance <= 6 and p.name in EXPONENTIALS]
    return all(least is not None and least >= _FAR_FROM_ZERO for least in made)


def in_the_optimizer(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """What the optimizer's own arithmetic made of finite gradients."""
    if birth.phase != "optimizer" or birth.transition in ("outside", "deliberate", "uninitialised"):
        return None
    divisor = divisor_of(birth) if birth.op in DIVISIONS else None
    zeros = int(birth.fact("denominator_zeros") or birth.fact("zero_divisors"))
    zeros = zeros or (divisor.summary.zeros if divisor is not None else 0)
    if birth.is_half and birth.op not in ("to_copy", "copy"):
        return Mechanism(Kind.HALF_UPDATE, divisor, zeros)
    return Mechanism(Kind.OPTIMIZER_DIVISION, divisor, zeros) if zeros else None


def box_without_size(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """The logarithm of, or a division by, end - start of data, which is not positive."""
    if birth.op not in _SIZED or by_autograd(birth):
        return None
    for size in birth.operands:
        if (size.summary.zeros or size.negatives) and _difference_of_columns(size):
            return Mechanism(Kind.BOX_WITHOUT_SIZE, size, size.negatives + size.summary.zeros)
    return None


def zero_norm(step: FailedStep, birth: TracedBirth) -> Mechanism | None:
    """A division by a norm that is zero, or so small that the gradient is enormous."""
    if behind(birth) in _LAYERS:
        return _layer(birth)
    # In the gradient of a root the division by zero is the root's own.
    if behind(birth) not in (_BY_NODE if birth.phase == "backward" else _DIVIDING):
        return None
    norm = _norm_divisor(birth)
    if norm is None:
        return None
    zeros = norm.summary.zeros or int(birth.fact("zero_rows"))
    if zeros:
        return Mechanism(Kind.ZERO_NORM, norm, zeros)
    inverse = norm.made_by("rsqrt", "reciprocal", within=1) is not None
    smallest = norm.smallest_positive if not inverse else (1 / norm.absmax if norm.absmax else None)
    if smallest is None or smallest > 1e-7:
        return None
    return Mechanism(Kind.ZERO_NORM, norm, more={"smallest": smallest})


def _zero_divisor(birth: TracedBirth) -> Operand | None:
    exponent = exponent_of(birth)
    if birth.op not in DIVISIONS and not (birth.op == "pow" and exponent is not None and exponent < 0):
        return None
    divisor = divisor_of(birth)
    if divisor is None and birth.fact("zero_divisors"):  # a number of the script: x / 0
        return Operand(TensorSummary("other", (), birth.dtype, 0.0, 0.0, zeros=1), "constant")
    return divisor if divisor is not None and divisor.summary.zeros else None


def _kind(birth: TracedBirth, divisor: Operand) -> str:
    said = birth.facts.get("divisor_is")
    if isinstance(said, str) and said not in ("other", "sum"):
        return said
    if divisor.is_integer or counted_up(divisor):
        return "count"
    if is_energy(divisor) and not divisor.requires_grad:
        return "energy"
    return "sum" if divisor.made_by(*_SUMS, within=4) else (said if isinstance(said, str) else "other")


def _statistic(birth: TracedBirth, divisor: Operand) -> str | None:
    """The statistic of a sample that the divisor is: zero for a constant sample."""
    said = birth.facts.get("divisor_is")
    of_data = not divisor.requires_grad and not any(operand.requires_grad for operand in birth.operands)
    if divisor.made_by("sum", "count_nonzero", "bincount", within=1) is not None:
        # what was sorted or compared to choose the summands says nothing about the sum
        return "an energy" if is_energy(divisor) and of_data else None
    if said == "range" or (divisor.made_by("sub", within=3) and divisor.made_by(*_EXTREMES, within=5)):
        return "a range"
    if said == "std" or divisor.made_by(*_SPREADS, within=4):
        return "a standard deviation"
    if said == "max" or divisor.made_by(*_EXTREMES, within=3):
        return "a maximum"
    if said == "mean" or divisor.made_by("mean", within=3):
        return "a mean" if not divisor.requires_grad else None
    stored = divisor.origin in ("constant", "batch", "buffer", "outside") and not divisor.is_integer
    numerator = birth.operand("self")
    if not stored or birth.op != "div":  # 1 / frequency is no rescaling
        return None
    data = numerator is not None and not numerator.requires_grad and birth.fact("zero_over_zero")
    return "a stored statistic" if data or divisor.numel > 1 else None


def _is_scale(birth: TracedBirth, divisor: Operand) -> bool:
    """A scale or variance that the model predicts."""
    if birth.op not in DIVISIONS or birth.facts.get("divisor_is") in ("count", "range", "norm"):
        return False
    if birth.phase == "optimizer" or divisor.made_by(*_NO_SCALE, within=3):
        return False
    positive = divisor.made_by(*_POSITIVE_FORMS, within=4) is not None
    return divisor.requires_grad and (divisor.origin == "parameter" or positive)


def _variance_by_hand(birth: TracedBirth) -> bool:
    """((x - mean) ** 2).sum() / (n - 1) or z.T @ z / (n - 1), with n - 1 a number of the script."""
    if birth.op != "div" or birth.operand("other") is not None:
        return False
    total = birth.operand("self")
    squares = (("sum",), ("pow", "mul", "square")), (_PRODUCTS,)
    return total is not None and any(
        all(total.made_by(*names, within=5) is not None for names in (*summed, ("sub",), ("mean",)))
        for summed in squares
    )


def _difference_of_columns(operand: Operand) -> bool:
    """end - start of data: a difference that nothing was computed for before, and nothing is learnt through."""
    if operand.requires_grad or operand.origin in ("parameter", "buffer", "state"):
        return False
    difference = operand.made_by("sub", within=3)
    if difference is None or isinstance(difference.scalars.get("other"), (int, float)):
        return False
    before = [p.name for p in upstream_of(operand, difference) if not _in_other_units(p)]
    after = [p.name for p in operand.producers if difference in upstream_of(operand, p)]
    # What was cut at a border (a crop, the edge of an image) was moved and scaled before: still coordinates.
    legal = (*_RAW, *_RESCALED, *CLAMPS, "sub") if any(name in CLAMPS for name in before) else _RAW
    return all(name in legal for name in before) and all(name in _RESCALED for name in after)


def _in_other_units(producer: Producer) -> bool:
    """Multiplied with or divided by a number of the script: pixels as a share of the image."""
    return producer.name in ("div", "mul") and isinstance(producer.scalars.get("other"), (int, float))


def _layer(birth: TracedBirth) -> Mechanism | None:
    """Normalisation layers whose eps does not protect them, and weight normalisation, which has none."""
    if birth.transition not in ("finite->nan", "finite->inf", "amplified"):
        return None
    eps = birth.scalars.get("eps")
    if isinstance(eps, float) and eps > 1e-16 and birth.transition != "amplified":
        return None
    return Mechanism(
        Kind.ZERO_NORM, birth.operands[0] if birth.operands else None, word="layer", more={"eps": eps}
    )


def _norm_divisor(birth: TracedBirth) -> Operand | None:
    """The norm that something is divided by."""
    candidates = [divisor_of(birth), birth.saved_tensor("other", "result"), *birth.operands, *birth.saved]
    if birth.facts.get("divisor_is") == "norm":
        return next((operand for operand in candidates if operand is not None), None)
    if behind(birth) in _NORMS and birth.fact("zero_rows") and birth.phase == "backward":
        return birth.saved_tensor("result") or next(iter(birth.saved), None)
    for operand in candidates:
        if operand is None:
            continue
        if operand.made_by(*_NORMS, within=3):
            return operand
        # sqrt(sum(x * x)), possibly with an eps or a clamp on the way
        rooted = operand.made_by("sqrt", "rsqrt", within=3) and operand.made_by("sum", "mean", within=5)
        if rooted and operand.made_by("pow", "mul", "square", within=7):
            return operand
    return None
