"""Trend: where a logarithm is going, by medians of pairwise slopes (Theil-Sen), so that single batches do not sway it.

Growth that slows down is followed to where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

WINDOW, LEAST = 16, 6
"""Samples that a trend is made of, at the most and at the least."""
_RISE, _RISE_GOES_ON, _FAR = math.log(3.0), 0.25, math.log(30.0)
"""By how much the value must have grown within the window; less is enough once it has come 30 times its lowest."""
_STANDS_OUT = 3
"""So many times what it varied by before is more than one sample differs from the next."""
_SPARSE = 4
"""One sample of so many, or fewer, in the second half of the time are few."""

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Trend:
    """The logarithm of a value over the last samples, and where it is going."""

    slope: float  # a step, now
    low: float  # steps to the limit, at the least
    left: float  # as the trend says
    high: float
    sure: bool  # nearly all pairs of samples say that it grows
    covered: float
    span: int


def trend_of(points: Sequence[Point], limit: float, lowest: float) -> Trend | None:
    """The trend of the last samples towards `limit` (both logarithms); None if it does not grow, or not that far.

    Growth that has just begun is seen in the last few alone, however long it was level before, if they stand out.
    """
    trend = _trend(points, limit, lowest, _RISE_GOES_ON if points[-1][1] - lowest > _FAR else _RISE)
    if len(points) > LEAST and (trend is None or not trend.sure):
        earlier, last = points[: 1 - LEAST], points[-LEAST:]
        varied = quantile([abs(b[1] - a[1]) for a, b in pairwise(earlier)], 0.5)
        begun = _trend(last, limit, lowest, max(_RISE, _STANDS_OUT * varied))
        if begun is not None and begun.sure and last[-1][1] > max(value for _, value in earlier):
            return begun
    return trend


def _trend(points: Sequence[Point], limit: float, lowest: float, least: float) -> Trend | None:
    if len(points) < LEAST:
        return None
    slopes = _slopes(points)
    usual = quantile(slopes, 0.5)
    middle = len(points) // 2
    earlier, later = _median_slope(points[: middle + 1]), _median_slope(points[middle:])
    now, headroom = min(later, max(usual, 0.0) * 4, _slope_after_a_gap(points)), limit - points[-1][1]
    rise = quantile([v for _, v in points[-3:]], 0.5) - quantile([v for _, v in points[:3]], 0.5)
    if usual <= 0 or now <= 0 or rise < least or headroom <= 0:
        return None
    left = headroom / now
    half = (points[-1][0] - points[0][0]) / 2
    if 0 < now < earlier and half > 0:
        decay = math.log(earlier / now) / half
        reach = now / decay  # what growth that slows down at this rate still adds
        if reach <= headroom:
            return None
        left = -math.log(1 - headroom * decay / now) / decay
    fast, slow = max(quantile(slopes, 0.9), now), quantile(slopes, 0.1)
    return Trend(
        slope=now,
        low=headroom / fast,
        left=left,
        high=max(left, min(headroom / slow, 4 * left) if slow > 0 else 4 * left),
        sure=slow > 0,
        covered=(points[-1][1] - lowest) / max(limit - lowest, 1e-9),
        span=points[-1][0] - points[0][0],
    )


def _slope_after_a_gap(points: Sequence[Point]) -> float:
    """Over the second half of the time, if few of the samples are from it: nearly all pairs are older then, and say how
    it grew once. Infinite where samples are as dense as before."""
    middle = (points[0][0] + points[-1][0]) / 2
    late = [value for step, value in points if step > middle]
    if len(late) * _SPARSE >= len(points):
        return math.inf
    step, value = points[-len(late) - 1]
    return (quantile(late, 0.5) - value) / (points[-1][0] - step)


def _slopes(points: Sequence[Point]) -> list[float]:
    return sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0])


def _median_slope(points: Sequence[Point]) -> float:
    slopes = _slopes(points)
    return quantile(slopes, 0.5) if slopes else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
