"""Small numbers by dtype, as they are written in source."""

from __future__ import annotations

from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.remedies.remedy import Case

_ROOT = {"float64": "1e-24", "float32": "1e-12", "bfloat16": "1e-12", "float16": "1e-4"}
_EPS = {"float64": "1e-12", "float32": "1e-6", "bfloat16": "1e-2", "float16": "1e-3"}
_SMALLEST = {"float64": "1e-300", "float32": "1e-30", "bfloat16": "1e-30", "float16": "6e-5"}


_NEXT_TO_ONE = {"float64": "1.2e-16", "float32": "6e-8", "bfloat16": "4e-3", "float16": "5e-4"}
_NORMAL = {"float64": "2.3e-308", "float32": "1.2e-38", "bfloat16": "1.2e-38", "float16": "6.2e-5"}
_ROUNDING = {"float64": 2.3e-16, "float32": 1.2e-7, "bfloat16": 7.9e-3, "float16": 9.8e-4}
_EXPONENT = {"float64": "300", "float32": "40", "bfloat16": "40", "float16": "10"}


def rounding_of_difference(operand: Operand) -> float:
    """How far off a difference may be: of two numbers of 1e6 about 0.1 in float32. 0 if it is no difference."""
    difference = operand.made_by("sub", within=2)
    if difference is None:
        return 0.0
    before = [p.absmax or 0.0 for p in operand.producers if p.distance == difference.distance + 1]
    return 4 * _ROUNDING.get(operand.dtype, 0.0) * max(before, default=0.0)


def largest_exponent(dtype: str) -> str:
    """The square of its exponential is finite, too."""
    return _EXPONENT.get(dtype, "40")


def next_to_one(case: Case) -> str:
    """1 minus this is the largest number below 1: every healthy value is left as it is."""
    return _NEXT_TO_ONE.get(_dtype(case), "6e-8")


def smallest_normal(case: Case) -> str:
    """Healthy values may be below every other floor: a likelihood of 1e-37."""
    return _NORMAL.get(_dtype(case), "1.2e-38")


def under_root(case: Case) -> str:
    """Added or clamped to under a root: its slope stays bounded."""
    return _ROOT.get(_dtype(case), "1e-12")


def margin(case: Case) -> str:
    """A distance from the edge of a domain that the dtype can tell from 0."""
    return _EPS.get(_dtype(case), "1e-6")


def smallest(case: Case) -> str:
    """Far below every healthy value, and its reciprocal is finite."""
    return _SMALLEST.get(_dtype(case), "1e-30")


def _dtype(case: Case) -> str:
    operand = case.operand
    return (
        operand.dtype
        if operand is not None and operand.dtype.startswith(("float", "bfloat"))
        else case.birth.dtype
    )
