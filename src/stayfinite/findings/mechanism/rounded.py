"""Whether the zeros that a logarithm met are numbers that a smooth function has rounded to 0."""

from __future__ import annotations

from typing import Final

from stayfinite.findings.mechanism.operands import behind, rounded_maker, zeroed_by
from stayfinite.findings.subjects.traced_birth import Producer, TracedBirth

_LOGS: Final = ("log", "log1p")
_SMOOTH: Final = ("softmax", "sigmoid", "exp", "pow", "prod")
_NEAR: Final = 12


def rounded_by(birth: TracedBirth) -> Producer | None:
    """That smooth function, where something is learnt through it; None where the zeros are data, or it is no log."""
    taken = birth.operand("self", "input") if behind(birth) in _LOGS else None
    if taken is None or not taken.learnt:
        return None
    smooth, masked = rounded_maker(taken, *_SMOOTH, within=_NEAR), zeroed_by(taken, within=_NEAR)
    return None if smooth is not None and masked is not None and masked.distance < smooth.distance else smooth
