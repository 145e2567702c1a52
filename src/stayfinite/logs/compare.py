"""Where two runs part: the first step at which they differ, and the step from which they go separate ways."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from stayfinite.readers.log import Block, UnreadableLog, chunks, core, ignored, make_reader, open_log, role_of

_MOST = 5_000_000
_SAME = 1e-6
"""Logs are rounded; a relative difference below this is none."""
_APART = 0.1
_STAYS = 5


@dataclass(frozen=True, slots=True)
class Parting:
    """One series in both logs."""

    series: str
    role: str
    compared: int
    first: tuple[float, float, float] | None
    """The first step with a difference, and both values."""
    apart: tuple[float, float, float] | None
    """The step from which they differ by a tenth for five records, or only one is finite."""
    last: tuple[float, float, float] | None


@dataclass(slots=True)
class _Values:
    steps: array[float]
    values: array[float]


def compare(
    one: str, other: str, also: tuple[str, ...] = (), advance: Callable[[int], None] = lambda nbytes: None
) -> list[Parting]:
    """The series that both logs have, those that part first at the top. Raises `UnreadableLog`."""
    here, there = _read(one, also, advance), _read(other, also, advance)
    common = [name for name in here if name in there]
    if not common:
        raise UnreadableLog(f"{one} and {other} have no series in common: {_few(here)} and {_few(there)}")
    partings = [_part(name, here[name], there[name]) for name in common]
    return sorted(partings, key=lambda p: (p.first is None, p.first[0] if p.first else 0.0))


def _few(found: dict[str, _Values]) -> str:
    return ", ".join(list(found)[:5]) or "none"


def _read(path: str, also: tuple[str, ...], advance: Callable[[int], None]) -> dict[str, _Values]:
    found: dict[str, _Values] = {}
    with open_log(path) as handle:
        reader = None
        for data in chunks(handle, path):
            if reader is None:
                _, reader = make_reader(data, path, lambda name: name in also or core(name))
            advance(len(data))
            for block in reader.feed(data):
                _collect(found, block, also)
        if reader is None:
            raise UnreadableLog(f"{path}: the file is empty; nothing was logged")
        for block in reader.feed(b"", last=True):
            _collect(found, block, also)
    if not found:
        raise UnreadableLog(f"{path}: no loss, gradient norm or learning rate in this log")
    return found


def _collect(found: dict[str, _Values], block: Block, also: tuple[str, ...]) -> None:
    for name, column in block.columns.items():
        if ignored(name) or not (core(name) or name in also):
            continue
        kept = found.setdefault(name, _Values(array("d"), array("d")))
        if len(kept.values) >= _MOST:
            continue
        start = len(kept.values)
        steps = (
            [block.steps[row] for row in column.rows]
            if len(block.steps)
            else range(start, start + len(column.values))
        )
        kept.steps.extend(steps)
        kept.values.extend(column.values)


def _part(name: str, a: _Values, b: _Values) -> Parting:
    """Walk along both by step; after a step back (a resume) the later value counts."""
    first = apart = last = None
    candidate: tuple[float, float, float] | None = None
    streak = compared = i = j = 0
    while i < len(a.steps) and j < len(b.steps):
        step, other = a.steps[i], b.steps[j]
        if step < other or math.isnan(step):
            i += 1
            continue
        if other < step or math.isnan(other):
            j += 1
            continue
        x, y = a.values[i], b.values[j]
        i, j, compared = i + 1, j + 1, compared + 1
        last = (step, x, y)
        one_bad = math.isfinite(x) != math.isfinite(y)
        distance = math.inf if one_bad else _distance(x, y)
        if distance > _SAME and first is None:
            first = last
        if distance > _APART and apart is None:
            candidate = candidate or last
            streak += 1
            if streak >= _STAYS or one_bad:
                apart = candidate if not one_bad else last
        elif apart is None:
            candidate, streak = None, 0
    return Parting(name, role_of(name).value, compared, first, apart, last)


def _distance(x: float, y: float) -> float:
    if x == y or not math.isfinite(x):
        return 0.0
    return abs(x - y) / max(abs(x), abs(y), 1e-300)
