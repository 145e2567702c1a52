"""The heat map of the modules as text: one strip a module, colours and blocks by logarithm, forecasts marked below."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stayfinite.report.html.words import figure
from stayfinite.report.record.heat import Cell
from stayfinite.report.record.loose import to_number, whole
from stayfinite.report.record.run import RunRecord

_LEVELS = "▁▂▃▄▅▆▇█"
_COLOURS = ("#5a6470", "#8a7a3a", "#c98a2e", "#e0672f", "#e0302f")
_NAME = 36


def heat_strips(record: RunRecord, rows: int, width: int) -> Iterator[RenderableType]:
    """The modules with the largest outputs, in the order of the model; nothing if there are no vitals."""
    cells, numbers = record.heat.last(), sorted(record.heat.columns)
    if not cells:
        return
    width = max(8, min(width, len(numbers)))
    largest = sorted(cells, key=lambda item: _size(item[1]), reverse=True)[:rows]
    chosen = [(name, cell) for name, cell in cells if any(name == known for known, _ in largest)]
    strips = {name: _strip(record, record.heat.modules[name], numbers, width) for name, _ in chosen}
    known = [v for strip in strips.values() for v in strip if v is not None and 0 < v < math.inf]
    low, high = min(known, default=1.0), max(known, default=1.0)
    grid = Table.grid(padding=(0, 2))
    for name, (size, _, gain) in chosen:
        last, by = Text(figure(size), justify="right"), Text(f"gain {figure(gain)}")
        grid.add_row(Text(name[-_NAME:]), last, by, _drawn(strips[name], low, high))
    marks = _marks(record, numbers, width)
    if marks.plain.strip():
        grid.add_row(Text("forecasts", style="yellow"), "", "", marks)
    first, final = numbers[0] * record.heat.width, (numbers[-1] + 1) * record.heat.width - 1
    yield Text(f"Largest outputs, steps {first:,} to {final:,}", style="dim")
    yield grid


def _size(cell: Cell) -> float:
    number = to_number(cell[0])
    return -1.0 if number is None else math.inf if math.isnan(number) else number


def _strip(record: RunRecord, place: int, numbers: Sequence[int], width: int) -> list[float | None]:
    """The largest output in each of `width` stretches; NaN counts most."""
    made: list[float | None] = [None] * width
    for at, number in enumerate(numbers):
        cell = record.heat.columns[number].get(place)
        value = to_number(cell[0]) if cell is not None else None
        into = at * width // len(numbers)
        known = made[into]
        if value is not None and (known is None or math.isnan(value) or value > known):
            made[into] = value
    return made


def _drawn(strip: Sequence[float | None], low: float, high: float) -> Text:
    line = Text()
    for value in strip:
        if value is None:
            line.append(" ")
        elif math.isnan(value) or math.isinf(value):
            line.append("×", style="bold red")
        else:
            share = math.log(max(value, low) / low) / math.log(high / low) if high > low else 0.0
            colour = _COLOURS[min(int(share * len(_COLOURS)), len(_COLOURS) - 1)]
            line.append(_LEVELS[min(int(share * len(_LEVELS)), len(_LEVELS) - 1)], style=colour)
    return line


def _marks(record: RunRecord, numbers: Sequence[int], width: int) -> Text:
    """Where a forecast was made."""
    steps = [step for line in record.forecasts if (step := whole(line, "step")) is not None]
    columns = {min(bisect_left(numbers, step // record.heat.width), len(numbers) - 1) for step in steps}
    marked = {column * width // len(numbers) for column in columns}
    return Text("".join("▲" if at in marked else " " for at in range(width)), style="yellow")
