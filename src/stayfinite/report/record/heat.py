"""HeatMap: the vitals of every module over time, in a bounded number of columns; the largest of a column survives."""

from __future__ import annotations

import math
from typing import Any

from stayfinite.findings import Json, jsonable
from stayfinite.report.record.loose import to_number

COLUMNS = 192
MODULES = 256
METRICS = ("max", "rms", "gain")

Cell = list[float | None]


class HeatMap:
    """Columns of `width` steps; a cell holds the largest max, rms and gain of a module in these steps."""

    def __init__(self) -> None:
        self.width = 1
        self.modules: dict[str, int] = {}
        self.order: list[int] = []  # of the rows: as the model has the modules, as far as the lines tell
        self.columns: dict[int, dict[int, Cell]] = {}
        self.is_full = False  # there were more modules than rows
        self._changed: set[int] = set()
        self._widened = True

    def add(self, step: int, modules: dict[str, Any]) -> None:
        column = self.columns.setdefault(step // self.width, {})
        self._changed.add(step // self.width)
        before: int | None = None
        for name, values in modules.items():
            index = self._index(name, before)
            if index is None or not isinstance(values, list):
                continue
            before = index
            found = [to_number(value) for value in values[: len(METRICS)]]
            _merge(column.setdefault(index, [None] * len(METRICS)), found)
        while len(self.columns) > COLUMNS:
            self._widen()

    def _index(self, name: str, before: int | None) -> int | None:
        """A new module gets the row below the one that came before it in its line."""
        known = self.modules.get(name)
        if known is None and len(self.modules) < MODULES:
            known = self.modules[name] = len(self.modules)
            self.order.insert(self.order.index(before) + 1 if before is not None else 0, known)
        elif known is None:
            self.is_full = True
        return known

    def _widen(self) -> None:
        self.width *= 2
        halved: dict[int, dict[int, Cell]] = {}
        for number, column in self.columns.items():
            known = halved.setdefault(number >> 1, column)
            if known is not column:
                for index, cell in column.items():
                    _merge(known.setdefault(index, [None] * len(METRICS)), cell)
        self.columns = halved
        self._widened = True

    def last(self) -> list[tuple[str, Cell]]:
        """The newest column, in the order of the model."""
        if not self.columns:
            return []
        names, newest = list(self.modules), self.columns[max(self.columns)]
        return [(names[index], newest[index]) for index in self.order if index in newest]

    def to_json(self) -> dict[str, Json]:
        return self._told(sorted(self.columns), whole=True)

    def take_changes(self) -> dict[str, Json] | None:
        """What changed since the last call; None if nothing did."""
        if not self._changed and not (self._widened and self.columns):
            return None
        whole, self._widened = self._widened, False
        numbers = sorted(self.columns if whole else self._changed)
        self._changed.clear()
        return self._told(numbers, whole=whole)

    def _told(self, numbers: list[int], *, whole: bool) -> dict[str, Json]:
        columns: list[Json] = []
        for number in numbers:
            cells = self.columns[number]
            columns.append(
                [number, {str(index): [_short(value) for value in cell] for index, cell in cells.items()}]
            )
        return {
            "width": self.width,
            "modules": [*self.modules],
            "order": [*self.order],
            "columns": columns,
            "whole": whole,
        }


def _merge(into: Cell, other: Cell) -> None:
    for i, value in enumerate(other):
        known = into[i]
        if value is not None and (known is None or _worse(value, known)):
            into[i] = value


def _worse(value: float, known: float) -> bool:
    """NaN is worse than anything; else the larger."""
    return not math.isnan(known) and (math.isnan(value) or value > known)


def _short(value: float | None) -> Json:
    return jsonable(float(f"{value:.4g}")) if value is not None else None
