"""Digest: one pass over the blocks of a log, whatever its length, gives the `Log` that rules examine."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from stayfinite.findings.subjects.log import CORE, Happening, Log, Point, Role, Series, Trouble
from stayfinite.logs import detectors
from stayfinite.logs.chunk import Chunk, Tail
from stayfinite.logs.extent import Thinner, extend
from stayfinite.logs.resumes import ResumeFollower, Side
from stayfinite.readers.log import Block, ignored, role_of

_TAIL = 256
_MOST_SERIES = 2000
_MOST_KEPT = 400
_FACTORS = {Role.LOSS: 1.5, Role.NORM: 4.0, Role.UPDATE: 4.0}
_TROUBLE = (Role.LOSS, Role.COMPONENT, Role.NORM)


@dataclass(slots=True)
class _Watched:
    """A series and the states of its detectors."""

    series: Series
    tail: Tail = field(default_factory=lambda: Tail(_TAIL))
    thinner: Thinner = field(default_factory=Thinner)
    spikes: detectors.SpikeTrail | None = None
    scale: detectors.ScaleTrail | None = None
    rate: detectors.RateTrail | None = None


class Digest:
    """Feed it blocks; ask for the `log` at any time."""

    def __init__(self, path: str, form: str = "unknown") -> None:
        self._log = Log(path, form)
        self._watched: dict[str, _Watched] = {}
        self._steps_seen = False
        self._step = math.nan
        self._skips = 0
        self._resumes = ResumeFollower()

    def update(self, block: Block) -> list[Happening]:
        """Add a block; what happened in it, in order."""
        log = self._log
        log.unread += block.unread
        if not len(block):
            return []
        first, happened = log.records, list[Happening]()
        steps = self._steps(block, first, happened)
        before = (
            {name: watched.tail.copy() for name, watched in self._watched.items()}
            if log.trouble is None
            else {}
        )
        latest = {
            name: w.series.last.value
            for name, w in self._watched.items()
            if w.series.last and w.series.role in CORE
        }
        chunks: dict[str, Chunk] = {}
        refused = {row for row, action in block.texts.get("action", ()) if action != "none"}
        for name, column in block.columns.items():
            watched = self._watch(name)
            if watched is not None and column.values:
                chunk = Chunk(column.values, column.rows, steps, block.lines, first, column.constant)
                chunks[name] = chunk
                happened += self._add(watched, chunk)
                if refused and not chunk.finite:
                    watched.series.refused += sum(
                        row in refused
                        for row, value in zip(chunk.rows, chunk.values, strict=True)
                        if not math.isfinite(value)
                    )
        self._add_nulls(block)
        self._add_texts(block, steps, first, happened)
        points = [happening.point for happening in happened if happening.what == "resume"]
        loss, rate = self._main(Role.LOSS), self._main(Role.RATE)
        self._resumes.update(points, _side(loss, chunks), _side(rate, chunks), first)
        log.resumes = self._resumes.found
        happened.sort(key=lambda happening: happening.point.order)
        bad = [
            h for h in happened if h.what == "nonfinite" and self._watched[h.series].series.role in _TROUBLE
        ]
        for happening in bad:
            series = self._watched[happening.series].series
            if series.first_bad is not None and series.first_bad.order == happening.point.order:
                series.around = self._around(happening.point.order, chunks, latest)
        if log.trouble is None and bad:
            self._find_trouble(bad, chunks, before)
        log.records += len(block)
        log.lines = max(log.lines, block.lines[-1])
        for happening in happened:
            log.happened[happening.what] = log.happened.get(happening.what, 0) + 1
            if log.happened[happening.what] <= _MOST_KEPT:
                log.happenings.append(happening)
        return happened

    @property
    def log(self) -> Log:
        """Everything up to now."""
        log = self._log
        log.counted = self._steps_seen
        for watched in self._watched.values():
            watched.series.buckets = watched.thinner.buckets()
        log.series = {name: watched.series for name, watched in self._watched.items()}
        return log

    # Steps

    def _steps(self, block: Block, first: int, happened: list[Happening]) -> Sequence[float]:
        log = self._log
        if not len(block.steps):
            if not self._steps_seen:
                steps: Sequence[float] = range(first, first + len(block))
            else:
                steps = [self._step] * len(block)
        else:
            self._steps_seen = True
            steps = block.steps
            if any(map(math.isnan, steps)):
                steps = self._filled(steps)
            self._note_returns(steps, block, first, happened)
            self._step = steps[-1]
        if log.first_step is None:
            log.first_step = steps[0]
        log.last_step = steps[-1]
        return steps

    def _filled(self, steps: Sequence[float]) -> list[float]:
        """A record without a step belongs to the last one that was named."""
        made: list[float] = []
        last = self._step if not math.isnan(self._step) else 0.0
        for step in steps:
            last = last if math.isnan(step) else step
            made.append(last)
        return made

    def _note_returns(
        self, steps: Sequence[float], block: Block, first: int, happened: list[Happening]
    ) -> None:
        """Where the count goes back: to its start (a new epoch, a new run) or into the middle (a resume)."""
        log = self._log
        ordered = all(map(operator.le, steps, islice(steps, 1, None)))
        if ordered and not steps[0] < self._step:
            return
        before = self._step
        start = log.first_step if log.first_step is not None else steps[0]
        for row, step in enumerate(steps):
            if step < before:
                # Validation is often logged a few steps behind, under the step its weights are from.
                if step <= start + max(1.0, 0.02 * (before - start)):
                    log.restarts += 1
                elif before - step > max(2.0, 0.001 * before) and step > start:
                    point = Point(step, before, block.lines[row], first + row)
                    happened.append(Happening("resume", "step", point, before))
            before = step

    # Series

    def _watch(self, name: str) -> _Watched | None:
        found = self._watched.get(name)
        if found is not None or ignored(name) or len(self._watched) >= _MOST_SERIES:
            return found
        role = role_of(name)
        made = _Watched(Series(name, role))
        if role in _FACTORS:
            made.spikes = detectors.SpikeTrail(_FACTORS[role])
        elif role is Role.SCALE:
            made.scale = detectors.ScaleTrail()
        elif role is Role.RATE:
            made.rate = detectors.RateTrail()
        self._watched[name] = made
        return made

    def _add(self, watched: _Watched, chunk: Chunk) -> list[Happening]:
        series = watched.series
        name = series.name
        usual = series.last_finite.value if series.last_finite else None
        happened = [
            Happening("nonfinite", name, chunk.point(index), chunk.values[index - 1] if index else usual)
            for index in extend(series, chunk)
        ]
        series.nulls, series.null_since = 0, None
        low, high = watched.thinner.extend(chunk)
        series.minimum, series.maximum = min(series.minimum, low), max(series.maximum, high)
        watched.tail.extend(chunk)
        alarms: list[detectors.Alarm] = []
        what = ""
        if watched.spikes is not None:
            watched.spikes, alarms = detectors.update_spikes(watched.spikes, chunk.values)
            what = "spike"
        elif watched.scale is not None:
            watched.scale, alarms = detectors.update_scale(watched.scale, chunk.values)
            what = "scale-fell"
        elif watched.rate is not None:
            watched.rate, alarms = detectors.update_rate(watched.rate, chunk.values)
            what = "rate-jump"
        return happened + [Happening(what, name, chunk.point(alarm.index), alarm.usual) for alarm in alarms]

    def _add_nulls(self, block: Block) -> None:
        for name, rows in block.nulls.items():
            watched = self._watched.get(name)
            if watched is None or watched.series.role not in CORE or not watched.series.count:
                continue
            column = block.columns.get(name)
            last = column.rows[-1] if column is not None and column.values else -1
            after = [row for row in rows if row > last]
            if after:
                watched.series.nulls += len(after)
                watched.series.null_since = watched.series.null_since or block.lines[after[0]]

    def _add_texts(self, block: Block, steps: Sequence[float], first: int, happened: list[Happening]) -> None:
        log = self._log
        for row, action in block.texts.get("action", ()):
            log.actions[action] = log.actions.get(action, 0) + 1
            if action == "none":
                self._skips = 0
                continue
            self._skips += 1
            log.longest_skip = max(log.longest_skip, self._skips)
            point = Point(steps[row], math.nan, block.lines[row], first + row)
            happened.append(Happening("skip", "action", point))
        for row, event in block.texts.get("event", ()):
            point = Point(steps[row], self._step, block.lines[row], first + row)
            again = event == "restore" or (event == "start" and log.records + row > 0)
            happened.append(Happening("resume" if again else "event", "event", point))

    # Moments

    def _around(self, order: int, chunks: dict[str, Chunk], latest: dict[str, float]) -> dict[str, float]:
        """The core series at one record: what it holds, or the last value before it."""
        found: dict[str, float] = {}
        for name, watched in self._watched.items():
            if watched.series.role not in CORE:
                continue
            chunk = chunks.get(name)
            index = bisect_right(chunk.rows, order - chunk.first) - 1 if chunk is not None else -1
            if chunk is not None and index >= 0:
                found[name] = chunk.values[index]
            elif name in latest:
                found[name] = latest[name]
        return found

    def _find_trouble(
        self, bad: Sequence[Happening], chunks: dict[str, Chunk], before: dict[str, Tail]
    ) -> None:
        # In one record the loss explains the norm, not the other way round.
        order = bad[0].point.order
        same = [h for h in bad if h.point.order == order]
        chosen = min(same, key=lambda h: _TROUBLE.index(self._watched[h.series].series.role))
        series = self._watched[chosen.series].series
        trouble = Trouble(chosen.series, series.role, chosen.point, series.around)
        for name, watched in self._watched.items():
            if watched.series.role not in CORE:
                continue
            chunk, tail = chunks.get(name), before.get(name, Tail(_TAIL))
            if chunk is not None:
                tail.extend(chunk, bisect_left(chunk.rows, order - chunk.first))
            points = tail.points()
            if points:
                trouble.before[name] = points
        self._log.trouble = trouble

    def _main(self, role: Role) -> _Watched | None:
        found = [watched for watched in self._watched.values() if watched.series.role is role]
        return min(found, key=lambda w: (-w.series.count, len(w.series.name)), default=None)


def _side(watched: _Watched | None, chunks: dict[str, Chunk]) -> Side | None:
    if watched is None:
        return None
    return Side(watched.series.name, chunks.get(watched.series.name), watched.tail.values(_TAIL))
