"""Counts, range, first and last, repeats and buckets of a series, brought up to date with each chunk."""

from __future__ import annotations

import math
from itertools import pairwise

from stayfinite.findings.subjects.log import Bucket, Series
from stayfinite.logs.chunk import Chunk

_MOST_BUCKETS = 1024
_HEAD = 64


def extend(series: Series, chunk: Chunk) -> list[int]:
    """Add a chunk to a series; returns the indices at which a stretch of bad values begins."""
    began: list[int] = []
    values = chunk.values
    if chunk.finite:
        series.last_finite = chunk.point(len(values) - 1)
    else:
        bad_before = series.ends_bad
        for index, value in enumerate(values):
            if math.isfinite(value):
                series.last_finite = chunk.point(index)
                bad_before = False
                continue
            if math.isnan(value):
                series.nan += 1
            else:
                series.inf += 1
            series.last_bad = chunk.point(index)
            series.first_bad = series.first_bad or series.last_bad
            if not bad_before:
                began.append(index)
            bad_before = True
    for index in range(min(_HEAD - len(series.head), len(values))):
        series.head.append(chunk.point(index))
    series.first = series.first or chunk.point(0)
    _count_repeats(series, chunk)
    series.last = series.last_bad if not math.isfinite(values[-1]) else chunk.point(len(values) - 1)
    series.count += len(values)
    return began


def _count_repeats(series: Series, chunk: Chunk) -> None:
    """How often the last value stands at the end of the log without a change."""
    values = chunk.values
    last = values[-1]
    same = chunk.constant or (values[0] == last and values.count(last) == len(values))
    back = 0 if same else len(values) - 1
    while back > 0 and values[back - 1] == last:
        back -= 1
    if back == 0 and series.last is not None and series.last.value == last:
        series.repeated += len(values)
    else:
        series.repeated = len(values) - back
        series.repeated_since = chunk.point(back)


class Thinner:
    """Puts a series of any length into about a thousand buckets, which double their width when they are full."""

    def __init__(self) -> None:
        self.width = 1
        self._buckets: list[Bucket] = []

    def extend(self, chunk: Chunk) -> tuple[float, float]:
        """Add a chunk; returns the lowest and highest finite value in it."""
        at = 0
        lowest, highest = math.inf, -math.inf
        while at < len(chunk):
            held = self._buckets[-1] if self._buckets else None
            room = self.width - (held.finite + held.bad) if held is not None else 0
            if held is not None and room > 0:
                end = min(at + room, len(chunk))
                made = _bucket(chunk, at, end)
                self._buckets[-1] = join(held, made)
            else:
                if len(self._buckets) >= 2 * _MOST_BUCKETS:
                    self._halve()
                    continue
                end = min(at + self.width, len(chunk))
                made = _bucket(chunk, at, end)
                self._buckets.append(made)
            lowest, highest = min(lowest, made.low), max(highest, made.high)
            at = end
        return lowest, highest

    def _halve(self) -> None:
        pairs = list(pairwise([*self._buckets, None]))[::2] if len(self._buckets) % 2 == 0 else []
        self._buckets = [join(a, b) for a, b in pairs if a is not None and b is not None]
        self.width *= 2

    def buckets(self) -> list[Bucket]:
        return list(self._buckets)


def _bucket(chunk: Chunk, begin: int, end: int) -> Bucket:
    first, last = chunk.rows[begin], chunk.rows[end - 1]
    if chunk.constant and chunk.finite:
        value, count = chunk.values[0], end - begin
        return Bucket(
            chunk.first + first, chunk.steps[first], chunk.steps[last], value, value, value * count, count
        )
    part = chunk.values[begin:end]
    known = part if chunk.finite else [value for value in part if math.isfinite(value)]
    return Bucket(
        chunk.first + first,
        chunk.steps[first],
        chunk.steps[last],
        min(known, default=math.inf),
        max(known, default=-math.inf),
        sum(known),
        len(known),
        len(part) - len(known),
    )


def join(a: Bucket, b: Bucket) -> Bucket:
    """Two neighbours as one."""
    return Bucket(
        a.order, a.step, b.last_step, min(a.low, b.low), max(a.high, b.high), a.total + b.total,
        a.finite + b.finite, a.bad + b.bad,
    )  # fmt: skip
