"""How rules read a traced birth: which births to look at, and how to put their numbers into words."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypedDict

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, Producer, TracedBirth

LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": 3.3895e38,
    "float32": 3.4028e38,
    "float64": 1.7976e308,
}
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
_LOOKED_AT = 8


class Where(TypedDict):
    """The place of a finding, as keyword arguments."""

    file: str | None
    line: int | None


def births_by_weight(step: FailedStep) -> Iterator[tuple[TracedBirth, float]]:
    """The births a rule should judge, each with how much it counts: the most causal one fully, others less."""
    for position, birth in enumerate(step.births[:_LOOKED_AT]):
        if position == 0:
            yield birth, 1.0
        else:
            yield birth, 0.55 if birth.transition == "inf->nan" else 0.65


def at(birth: TracedBirth) -> Where:
    """Where the birth was."""
    return {"file": birth.birth.file, "line": birth.birth.line}


def by_autograd(birth: TracedBirth) -> bool:
    """Born inside autograd's own formula for a forward op, not in code that somebody wrote."""
    return birth.phase == "backward" and birth.forward_op is not None


def behind(birth: TracedBirth) -> str:
    """The op to judge by: the forward op of a birth in backward, else the op itself."""
    return birth.forward_name or birth.op if birth.phase == "backward" else birth.op


def decisive(birth: TracedBirth, *names: str) -> Operand | None:
    """The operand with one of these names, or what the forward op saved under it, or the first operand."""
    found = birth.operand(*names) or birth.saved_tensor(*names)
    return found or (birth.operands[0] if birth.operands else None)


def is_energy(divisor: Operand) -> bool:
    """A sum of squares or magnitudes: zero for a silent or black sample, not for an empty selection."""
    return (
        divisor.made_by("sum", within=1) is not None
        and divisor.made_by("pow", "square", "abs", within=2) is not None
    )


def divisor_of(birth: TracedBirth) -> Operand | None:
    """What is divided by: the second operand of div, the only one of reciprocal and rsqrt."""
    if birth.op in ("reciprocal", "rsqrt", "pow") or birth.forward_name in ("reciprocal", "rsqrt"):
        return decisive(birth, "self", "result")
    return birth.operand("other", "tensor2", "divisor") or birth.saved_tensor("other")


def counted(number: float, what: str) -> str:
    """ "1 zero", "3 zeros"."""
    whole = int(number)
    return f"{whole} {what}" if whole == 1 else f"{whole} {what}s"


def span(operand: Operand | None) -> str:
    """The finite range and dtype of a tensor: "0 to 0.91, float32"."""
    if operand is None or operand.summary.min is None or operand.summary.max is None:
        return "no finite value" if operand is not None else "range unknown"
    return f"{operand.summary.min:.4g} to {operand.summary.max:.4g}, {operand.dtype}"


def source_of(operand: Operand | None) -> str:
    """Where a tensor came from, as a phrase: "parameter head.weight", "the output of sigmoid (line 9)"."""
    if operand is None:
        return "its input"
    if operand.name:
        return f"{operand.origin} {operand.name}"
    if operand.producers:
        first = operand.producers[0]
        return f"the output of {first.name}" + (f" (line {first.line})" if first.line else "")
    return {"batch": "the batch", "constant": "a constant", "random": "random numbers"}.get(
        operand.origin, "its input"
    )


def tensors(*operands: Operand | None) -> list[dict[str, Any]]:
    """Operands for the evidence of a finding."""
    return [
        {**operand.summary.to_json(), "origin": operand.origin, "negatives": operand.negatives}
        for operand in operands
        if operand is not None
    ]


def facts(birth: TracedBirth, *names: str) -> dict[str, Any]:
    """The named facts that were measured."""
    return {name: birth.facts[name] for name in names if name in birth.facts}


def rounds_to_zero(value: float, dtype: str) -> bool:
    """Whether a positive number is zero in this dtype."""
    if dtype == "float16":
        return abs(value) < 65520 and struct.unpack("e", struct.pack("e", value))[0] == 0.0
    return abs(value) < SMALLEST.get(dtype, 0.0) / 2


def vanished_eps(operand: Operand | None, within: int = 4) -> tuple[float, Producer] | None:
    """A small number that was added (or clamped to) upstream, and is zero in the operand's dtype."""
    if operand is None:
        return None
    for producer in operand.producers:
        if producer.distance <= within and producer.name in ("add", "clamp_min", "clamp", "maximum", "sub"):
            eps = eps_of(producer.scalars)
            if eps is not None and rounds_to_zero(eps, operand.dtype):
                return eps, producer
    return None


def eps_of(scalars: Mapping[str, Any]) -> float | None:
    """The small positive number among an op's plain arguments."""
    for name in ("other", "min", "eps", "value"):
        value = scalars.get(name)
        if isinstance(value, float) and 0 < value < 1e-3:
            return value
    return None


def looks_like_mask(operand: Operand) -> bool:
    """Zeros and ones (or booleans) that nothing is learnt from."""
    small = operand.summary
    zero_one = small.min is not None and small.max is not None and small.min >= 0 and small.max <= 1
    return not operand.requires_grad and (operand.is_integer or (zero_one and small.zeros > 0)) and (
        operand.origin in ("batch", "constant", "outside", "buffer")
        or operand.made_by("ne", "eq", "gt", "lt", "ge", "le", "logical_not", "bitwise_not", "_to_copy", "to_copy",
                           "full", "zeros", "ones", "tril", "triu", "rsub") is not None
    )  # fmt: skip


def reaches(step: FailedStep, *names: str) -> bool:
    """Whether the way to the sink passes one of these ops."""
    ops = [path.op.removeprefix("aten.").split(".")[0].strip("_") for path in step.path]
    return any(name in op for op in ops for name in names) or any(b.op in names for b in step.births)
