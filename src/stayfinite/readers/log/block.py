"""Block: some records of a log, by columns. Columns are what makes a gigabyte of log readable in seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Name = str
Wanted = Callable[[Name], bool]
"""Whether every value of a series is asked for; of the others only those that are not finite are handed over."""

_SPELLED = {
    "nan": math.nan, "+nan": math.nan, "-nan": math.nan, "nan(ind)": math.nan, "1.#qnan": math.nan,
    "inf": math.inf, "+inf": math.inf, "infinity": math.inf, "+infinity": math.inf, "1.#inf": math.inf,
    "-inf": -math.inf, "-infinity": -math.inf, "-1.#inf": -math.inf,
}  # fmt: skip


@dataclass(slots=True)
class Column:
    """The values of one series, and in which rows of the block they are."""

    rows: Sequence[int]
    values: list[float]
    constant: bool = False
    """Known to hold one value only, as a learning rate often does; saves looking at each."""


@dataclass(slots=True)
class Block:
    """Rows of numbers with names. `steps` may be empty where the log does not count them."""

    lines: Sequence[int]
    steps: Sequence[float] = ()
    columns: dict[Name, Column] = field(default_factory=dict)
    texts: dict[Name, list[tuple[int, str]]] = field(default_factory=dict)
    """Words of a run's own record (action, event), with their rows."""
    nulls: dict[Name, list[int]] = field(default_factory=dict)
    """Rows in which a name stands without a value."""
    unread: int = 0
    """Lines of this part of the file that hold no numbers with names."""

    def __len__(self) -> int:
        return len(self.lines)


@dataclass(slots=True)
class Record:
    """One line, for formats that are read line by line."""

    line: int
    step: float | None
    numbers: dict[Name, float]
    texts: dict[Name, str] = field(default_factory=dict)
    nulls: tuple[Name, ...] = ()


def number(text: str) -> float | None:
    """A number as people and programs write it; None for anything else."""
    try:
        return float(text)  # also takes nan, inf and infinity in any case
    except ValueError:
        return _SPELLED.get(text.strip().lower())


def gather(records: Iterable[Record], unread: int = 0) -> Block:
    """Records as one block."""
    lines: list[int] = []
    steps: list[float] = []
    block = Block(lines, unread=unread)
    for row, record in enumerate(records):
        lines.append(record.line)
        steps.append(math.nan if record.step is None else record.step)
        for name, value in record.numbers.items():
            column = block.columns.get(name)
            if column is None:
                column = block.columns[name] = Column([], [])
            column.rows.append(row)  # type: ignore[attr-defined]
            column.values.append(value)
        for name, text in record.texts.items():
            block.texts.setdefault(name, []).append((row, text))
        for name in record.nulls:
            block.nulls.setdefault(name, []).append(row)
    block.steps = steps if any(not math.isnan(step) for step in steps) else ()
    return block
