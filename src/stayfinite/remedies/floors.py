"""Small numbers by dtype, as they are written in source."""

from __future__ import annotations

from stayfinite.remedies.remedy import Case

_ROOT = {"float64": "1e-24", "float32": "1e-12", "bfloat16": "1e-12", "float16": "1e-4"}
_EPS = {"float64": "1e-12", "float32": "1e-6", "bfloat16": "1e-2", "float16": "1e-3"}
_SMALLEST = {"float64": "1e-300", "float32": "1e-30", "bfloat16": "1e-30", "float16": "6e-5"}


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
