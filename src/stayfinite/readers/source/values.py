"""Values of the interpreter that are made of others: numbers, either of two, what a loop hands out."""

from __future__ import annotations

import math
from dataclasses import replace

from stayfinite.findings.subjects.source_file import INF, Value
from stayfinite.readers.source import intervals
from stayfinite.readers.source.scope import UNKNOWN
from stayfinite.readers.source.transfer import span_of

EDGE_TRAITS = frozenset({"most_negative", "minus_infinity", "holds_nan"})


def number(value: float) -> Value:
    """A number that is written in the source."""
    if isinstance(value, complex):
        return UNKNOWN
    plain = float(value) if abs(value) < 1e300 else math.copysign(INF, value)
    traits = frozenset({"holds_nan"}) if math.isnan(plain) else frozenset()
    low, high = (-INF, INF) if math.isnan(plain) else (plain, plain)
    return Value(kind="number", low=low, high=high, const=value, traits=traits)


def join(a: Value, b: Value) -> Value:
    """Either of two values."""
    if a is b:
        return a
    if a.kind == "none":
        return b
    if b.kind == "none":
        return a
    a_knows, b_knows = (value.known or value.number is not None for value in (a, b))
    if not (a_knows and b_knows):
        half = a.dtype if a.dtype == b.dtype else None
        if a.kind == b.kind and a.kind in ("module", "optimizer", "scaler", "scheduler"):
            return a
        traits = a.traits & b.traits
        if half is None and not traits and not (a.grad or b.grad):
            return UNKNOWN
        return Value("tensor", dtype=half, traits=traits, grad=True if a.grad or b.grad else None)
    span = intervals.hull(span_of(a), span_of(b))
    numbers = a.kind == "number" and b.kind == "number"
    return Value(
        "number" if numbers else "tensor", *span, made=a.made or b.made,
        const=a.const if a.const == b.const else None,
        dtype=a.dtype if a.dtype == b.dtype else None, grad=_flow(a, b),
        traits=a.traits & b.traits | ((a.traits | b.traits) & EDGE_TRAITS),
    )  # fmt: skip


def _flow(a: Value, b: Value) -> bool | None:
    """Whether a gradient flows through either; a number has no say, and None is not known."""
    if a.grad or b.grad:
        return True
    flows = [value.grad for value in (a, b) if value.kind != "number"]
    return False if all(flow is False for flow in flows) else None


def element_of(value: Value) -> Value:
    """What a loop over the value hands out."""
    if value.items:
        joined = value.items[0]
        for item in value.items[1:]:
            joined = join(joined, item)
        return joined
    if value.kind in ("tensor", "mask"):
        return replace(value, shape=None)
    return UNKNOWN


def without_gradient(value: Value) -> Value:
    """The same numbers, out of the graph."""
    return Value("tensor", grad=False) if value is UNKNOWN else replace(value, grad=False)
