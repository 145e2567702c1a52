"""Chunk: the values of one series in one block, with their steps, lines and places in the log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from stayfinite.findings.subjects.log import Point


@dataclass(slots=True)
class Chunk:
    """`rows` are positions in `steps` and `lines`; `first` is the place in the log of row 0."""

    values: list[float]
    rows: Sequence[int]
    steps: Sequence[float]
    lines: Sequence[int]
    first: int
    constant: bool = False
    finite: bool = field(init=False)

    def __post_init__(self) -> None:
        if self.constant:
            self.finite = math.isfinite(self.values[0])
            return
        # One addition per value: a NaN or an infinity anywhere leaves the sum not finite.
        self.finite = math.isfinite(sum(self.values)) or all(map(math.isfinite, self.values))

    def point(self, index: int) -> Point:
        row = self.rows[index]
        return Point(self.steps[row], self.values[index], self.lines[row], self.first + row)

    def __len__(self) -> int:
        return len(self.values)


class Tail:
    """The last finite values of a series, kept as plain lists; points are made when somebody asks."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: list[float] = []
        self._steps: list[float] = []
        self._lines: list[int] = []
        self._orders: list[int] = []

    def extend(self, chunk: Chunk, end: int | None = None) -> None:
        """Add the values before index `end`."""
        stop = len(chunk) if end is None else end
        if chunk.finite:
            indices = range(max(0, stop - self._most), stop)
        else:
            indices = [i for i in range(stop) if math.isfinite(chunk.values[i])][-self._most :]  # type: ignore[assignment]
        rows = [chunk.rows[index] for index in indices]
        self._values = (self._values + [chunk.values[index] for index in indices])[-self._most :]
        self._steps = (self._steps + [chunk.steps[row] for row in rows])[-self._most :]
        self._lines = (self._lines + [chunk.lines[row] for row in rows])[-self._most :]
        self._orders = (self._orders + [chunk.first + row for row in rows])[-self._most :]

    def values(self, most: int) -> list[float]:
        return self._values[-most:]

    def points(self) -> list[Point]:
        return [
            Point(step, value, line, order)
            for step, value, line, order in zip(
                self._steps, self._values, self._lines, self._orders, strict=True
            )
        ]

    def copy(self) -> Tail:
        made = Tail(self._most)
        made._values, made._steps = list(self._values), list(self._steps)
        made._lines, made._orders = list(self._lines), list(self._orders)
        return made
