"""Arithmetic on intervals whose ends may or may not be reached."""

from __future__ import annotations

import math
from typing import NamedTuple

INF = math.inf


class Span(NamedTuple):
    """An interval; an open end is approached and never reached."""

    low: float = -INF
    high: float = INF
    low_open: bool = False
    high_open: bool = False


ANY = Span()
NOT_NEGATIVE = Span(0.0, INF)
POSITIVE = Span(0.0, INF, True)
UNIT = Span(0.0, 1.0)
SYMMETRIC_UNIT = Span(-1.0, 1.0)


def add(a: Span, b: Span) -> Span:
    low, high = a[0] + b[0], a[1] + b[1]
    return Span(
        -INF if math.isnan(low) else low, INF if math.isnan(high) else high, a[2] or b[2], a[3] or b[3]
    )


def negate(a: Span) -> Span:
    return Span(-a[1], -a[0], a[3], a[2])


def subtract(a: Span, b: Span) -> Span:
    return add(a, negate(b))


def multiply(a: Span, b: Span) -> Span:
    ends = [
        _product(x, x_open, y, y_open)
        for x, x_open in ((a[0], a[2]), (a[1], a[3]))
        for y, y_open in ((b[0], b[2]), (b[1], b[3]))
    ]
    low, low_open = min(ends)  # of equal ends the one that is reached
    high, high_negated = max((value, not is_open) for value, is_open in ends)
    return Span(low, high, low_open, not high_negated)


def _product(x: float, x_open: bool, y: float, y_open: bool) -> tuple[float, bool]:
    if x == 0 or y == 0:
        is_open = (x_open and y_open) if x == 0 and y == 0 else (x_open if x == 0 else y_open)
        return 0.0, is_open
    return x * y, x_open or y_open


def reciprocal(a: Span) -> Span:
    if a[0] > 0 or (a[0] == 0 and a[2]):
        high = 1 / a[0] if a[0] > 0 else INF
        low = 1 / a[1] if a[1] not in (INF, 0) else 0.0
        return Span(low, high, a[3] or a[1] == INF, a[2])
    if a[0] >= 0:
        return Span(1 / a[1] if a[1] not in (INF, 0) else 0.0, INF, a[1] == INF)
    if a[1] < 0:
        return negate(reciprocal(negate(a)))
    return ANY


def divide(a: Span, b: Span) -> Span:
    return multiply(a, reciprocal(b))


def power(a: Span, exponent: float) -> Span:
    if exponent == 0:
        return Span(1.0, 1.0)
    if exponent < 0:
        return reciprocal(power(a, -exponent))
    even = exponent == int(exponent) and int(exponent) % 2 == 0
    if a[0] >= 0:
        return Span(_raise(a[0], exponent), _raise(a[1], exponent), a[2], a[3])
    if even:
        largest = max(abs(a[0]), abs(a[1]))
        if a[1] < 0:
            return Span(_raise(abs(a[1]), exponent), _raise(abs(a[0]), exponent), a[3], a[2])
        return Span(0.0, _raise(largest, exponent))
    return ANY


def _raise(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return INF


def absolute(a: Span) -> Span:
    if a[0] >= 0:
        return a
    if a[1] <= 0:
        return negate(a)
    return Span(0.0, max(-a[0], a[1]))


def hull(a: Span, b: Span) -> Span:
    low = min((a[0], a[2]), (b[0], b[2]))
    high = max((a[1], not a[3]), (b[1], not b[3]))
    return Span(low[0], high[0], low[1], not high[1])


def at_least(a: Span, floor: Span) -> Span:
    """The larger of the two, element by element."""
    low = max((a[0], a[2]), (floor[0], floor[2]))
    high = max((a[1], not a[3]), (floor[1], not floor[3]))
    return Span(low[0], high[0], low[1], not high[1])


def at_most(a: Span, ceiling: Span) -> Span:
    return negate(at_least(negate(a), negate(ceiling)))


def exponential(a: Span, *, underflows: bool) -> Span:
    """`underflows`: the argument is known to go far below -104, where float32 rounds exp to 0."""
    high = _exp(a[1])
    if a[0] == -INF:
        return Span(0.0, high, not underflows, a[3])
    return Span(_exp(a[0]), high, a[2] or a[0] > -100, a[3])


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def logarithm(a: Span) -> Span:
    low = math.log(a[0]) if 0 < a[0] < INF else -INF
    high = math.log(a[1]) if 0 < a[1] < INF else (INF if a[1] > 0 else -INF)
    return Span(low, high, a[2], a[3])
