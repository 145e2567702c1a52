"""How to read the operands of a birth: which op to judge by, what divides, what a tensor is."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, Producer, TracedBirth

LARGEST: Final = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7976e308}
SMALLEST: Final = {  # smallest positive number, subnormals included
    "float16": 5.96e-08,
    "bfloat16": 9.2e-41,
    "float32": 1.4e-45,
    "float64": 4.9e-324,
}
DIVISIONS: Final = ("div", "reciprocal", "rsqrt", "addcdiv", "true_divide", "remainder", "fmod")
# Ops that hide a bad value in the forward pass; where the gradient is concerned they hide nothing.
SANITISERS: Final = ("where", "nan_to_num", "nansum", "nanmean", "masked_fill", "index", "masked_select")
CLAMPS: Final = ("clamp", "clamp_min", "clamp_max", "minimum", "maximum", "hardtanh")

_FILLED: Final = {"masked_fill": ("value",), "where": ("self", "other")}
_COUNTERS = ("bincount", "histc", "count_nonzero", "histogram", "unique", "unique_consecutive")


def by_autograd(birth: TracedBirth) -> bool:
    """Born inside autograd's own formula for a forward op, not in code that somebody wrote."""
    return birth.phase == "backward" and birth.forward_op is not None


def behind(birth: TracedBirth) -> str:
    """The op to judge by: the forward op of a birth in backward, else the op itself."""
    return birth.forward_name or birth.op if birth.phase == "backward" else birth.op


def exponent_of(birth: TracedBirth) -> float | None:
    """The exponent of a power, where it is one number."""
    exponent = birth.facts.get("exponent", birth.scalars.get("exponent"))
    return float(exponent) if isinstance(exponent, (int, float)) else None


def divisor_of(birth: TracedBirth) -> Operand | None:
    """What is divided by: the second operand of div, the only one of reciprocal and rsqrt."""
    if birth.op in ("reciprocal", "rsqrt", "pow") or birth.forward_name in ("reciprocal", "rsqrt"):
        found = birth.operand("self", "result") or birth.saved_tensor("self", "result")
        return found or (birth.operands[0] if birth.operands else None)
    return birth.operand("other", "tensor2", "divisor") or birth.saved_tensor("other")


def is_energy(divisor: Operand) -> bool:
    """A sum of squares or magnitudes: zero for a silent or black sample, not for an empty selection."""
    return (
        divisor.made_by("sum", within=1) is not None
        and divisor.made_by("pow", "square", "abs", within=2) is not None
    )


def counted_up(operand: Operand) -> bool:
    """Made by counting: a bincount, or the sum of a mask."""
    if operand.made_by(*_COUNTERS, within=8):
        return True
    total = operand.made_by("sum", "index_add", "scatter_add", within=4)
    return total is not None and any(dtype.startswith(("bool", "int", "uint")) for dtype in total.inputs)


def looks_like_mask(operand: Operand) -> bool:
    """Zeros and ones (or booleans) that nothing is learnt from."""
    small = operand.summary
    zero_one = small.min is not None and small.max is not None and small.min >= 0 and small.max <= 1
    return not operand.requires_grad and (operand.is_integer or (zero_one and small.zeros > 0)) and (
        operand.origin in ("batch", "constant", "outside", "buffer")
        or operand.made_by("ne", "eq", "gt", "lt", "ge", "le", "logical_not", "bitwise_not", "_to_copy", "to_copy",
                           "full", "zeros", "ones", "tril", "triu", "rsub") is not None
    )  # fmt: skip


def rounded_maker(operand: Operand, *names: str, within: int) -> Producer | None:
    """The nearest of these smooth ops upstream that may have rounded to 0: one whose smallest value is above 0 has not,
    nor a power of an exact 0."""
    made = (p for p in operand.producers if p.distance <= within and p.name in names)
    smallest = SMALLEST.get(operand.dtype, 0.0)  # a narrower dtype rounds to 0 what a wider one held
    return next((p for p in made if p.least is None or not p.least > smallest), None)


def zeroed_by(operand: Operand, within: int = 8) -> Producer | None:
    """The nearest op upstream that puts exact zeros where a mask says so: those have not been rounded to 0."""
    for producer in operand.producers:
        if producer.distance > within:
            break
        filled = [producer.scalars.get(name) for name in _FILLED.get(producer.name, ())]
        if 0.0 in filled or (producer.name == "mul" and "bool" in producer.inputs):
            return producer
    return None


def upstream_of(operand: Operand, producer: Producer) -> list[Producer]:
    """What one of the operand's producers was itself made of: not its neighbours, which another branch was made of."""
    known = {one.number: one for one in operand.producers}
    found, waiting = dict[int, Producer](), list(producer.made_of)
    while waiting:
        number = waiting.pop()
        if number in known and number not in found:
            found[number] = known[number]
            waiting.extend(known[number].made_of)
    return list(found.values())


def reaches(step: FailedStep, *names: str) -> bool:
    """Whether the path to the sink passes one of these ops."""
    ops = [path.op.removeprefix("aten.").split(".")[0].strip("_") for path in step.path]
    return any(name in op for op in ops for name in names) or any(b.op in names for b in step.births)


def vanished_eps(operand: Operand, within: int = 4) -> tuple[float, Producer] | None:
    """A small number that was added (or clamped to) upstream, and is zero in the operand's dtype."""
    for producer in operand.producers:
        if producer.distance <= within and producer.name in ("add", "clamp_min", "clamp", "maximum", "sub"):
            eps = _eps_of(producer.scalars)
            if eps is not None and _rounds_to_zero(eps, operand.dtype):
                return eps, producer
    return None


def _eps_of(scalars: Mapping[str, Any]) -> float | None:
    """The small positive number among an op's plain arguments."""
    for name in ("other", "min", "eps", "value"):
        value = scalars.get(name)
        if isinstance(value, float) and 0 < value < 1e-3:
            return value
    return None


def _rounds_to_zero(value: float, dtype: str) -> bool:
    if dtype == "float16":
        return abs(value) < 65520 and struct.unpack("e", struct.pack("e", value))[0] == 0.0
    return abs(value) < SMALLEST.get(dtype, 0.0) / 2
