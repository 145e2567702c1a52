"""Envelope: a series of any length in a bounded number of buckets. Of each bucket the least and the greatest value
survive, and every kind of non-finite value that fell into it; so no spike and no NaN is lost to the drawing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from stayfinite.findings import Json

LIMIT = 2048
"""Buckets of a series: more than a plot has pixels."""

_SPELLED = {"nan": 2, "inf": 3, "-inf": 4}


class Envelope:
    """Buckets of `width` steps, a power of two that doubles when there would be more than `limit` of them.

    A bucket is [least, greatest, NaN, +Inf, -Inf]; the first two are None where no finite value fell into it.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        if limit < 1:
            raise ValueError("an envelope needs at least one bucket")
        self._limit = limit
        self.width = 1
        self.buckets: dict[int, list[Any]] = {}
        self._changed: set[int] = set()
        self._widened = True

    def extend(self, steps: Sequence[int], values: Sequence[Json]) -> None:
        """Add one value a step; what is no number is left out. A `range` of steps is quicker than a list."""
        if isinstance(steps, range) and steps.step == 1:
            self._extend_run(steps.start, values)
        else:
            for step, value in zip(steps, values, strict=True):
                self._put(step // self.width, (value,))
                if len(self.buckets) > self._limit:
                    self._widen()

    def _extend_run(self, first: int, values: Sequence[Json]) -> None:
        """Values of consecutive steps, a bucket at a time."""
        at = 0
        while at < len(values):
            number = (first + at) // self.width
            end = min((number + 1) * self.width - first, len(values))
            self._put(number, values[at:end])
            at = end
            if len(self.buckets) > self._limit:
                self._widen()

    def _put(self, number: int, values: Sequence[Json]) -> None:
        found = _finite_range(values)
        bucket = list(found) if found is not None else _sort_out(values)
        if bucket is None:
            return
        known = self.buckets.get(number)
        if known is None:
            self.buckets[number] = bucket
        else:
            _merge(known, bucket)
        self._changed.add(number)

    def _widen(self) -> None:
        while len(self.buckets) > self._limit:
            self.width *= 2
            halved: dict[int, list[Any]] = {}
            for number, bucket in self.buckets.items():
                known = halved.setdefault(number >> 1, bucket)
                if known is not bucket:
                    _merge(known, bucket)
            self.buckets = halved
        self._widened = True

    def to_json(self) -> dict[str, Json]:
        """All of it, for a page that begins to draw."""
        return self._told(sorted(self.buckets), whole=True)

    def take_changes(self) -> dict[str, Json] | None:
        """What changed since the last call; None if nothing did. For a page that has the rest."""
        if not self._changed and not self._widened:
            return None
        whole, self._widened = self._widened, False
        numbers = sorted(self.buckets if whole else self._changed)
        self._changed.clear()
        return self._told(numbers, whole=whole)

    def _told(self, numbers: list[int], *, whole: bool) -> dict[str, Json]:
        chosen = [self.buckets[number] for number in numbers]
        low: list[Json] = [_short(bucket[0]) for bucket in chosen]
        high: list[Json] = [_short(bucket[1]) for bucket in chosen]
        bad: list[Json] = [[i, *bucket[2:]] for i, bucket in enumerate(chosen) if any(bucket[2:])]
        told: dict[str, Json] = {"width": self.width, "at": [*numbers], "low": low, "whole": whole}
        if high != low:
            told["high"] = high
        if bad:
            told["bad"] = bad
        return told


def _finite_range(values: Sequence[Any]) -> tuple[float, float, int, int, int] | None:
    """The usual case at the speed of `min`: all are finite numbers. None: look at them one by one.

    `min` and `max` may pass over a NaN; the sum does not.
    """
    try:
        low, high = min(values), max(values)
        numbers = type(low) in (int, float) and type(high) in (int, float)
        if numbers and math.isfinite(low) and math.isfinite(high) and not math.isnan(sum(values)):
            return float(low), float(high), 0, 0, 0
    except (TypeError, ValueError, OverflowError):  # a string, None, a list, an integer beyond float
        return None
    return None


def _sort_out(values: Iterable[Json]) -> list[Any] | None:
    bucket: list[Any] = [None, None, 0, 0, 0]
    for value in values:
        if isinstance(value, str):
            kind = _SPELLED.get(value)
            if kind is not None:
                bucket[kind] += 1
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        if math.isnan(number):
            bucket[2] += 1
        elif math.isinf(number):
            bucket[3 if number > 0 else 4] += 1
        else:
            bucket[0] = number if bucket[0] is None else min(bucket[0], number)
            bucket[1] = number if bucket[1] is None else max(bucket[1], number)
    return bucket if bucket[0] is not None or any(bucket[2:]) else None


def _merge(into: list[Any], other: Sequence[Any]) -> None:
    if other[0] is not None:
        into[0] = other[0] if into[0] is None else min(into[0], other[0])
        into[1] = other[1] if into[1] is None else max(into[1], other[1])
    for kind in (2, 3, 4):
        into[kind] += other[kind]


def _short(value: float | None) -> float | None:
    """Six digits: more than a plot shows, and half the bytes."""
    return None if value is None else float(f"{value:.6g}")
