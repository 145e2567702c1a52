"""RunRecord: run.jsonl gathered line by line into series, counts and events. Its size does not grow with the run."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from stayfinite.findings import Json, jsonable
from stayfinite.findings.process_mark import lives
from stayfinite.report.record.envelope import Envelope
from stayfinite.report.record.heat import HeatMap
from stayfinite.report.record.loose import mapping, objects, text, to_number, whole

FIRST_EVENTS, LAST_EVENTS = 400, 400
SERIES = 48
"""A page with more plots than this helps nobody; what is left out is counted."""

_PARTS = 12  # of a quantity that has several: groups, kinds of actions
_FEW, _MANY = 3, 24  # named parts: components, observed tensors
_NOT_DRAWN = {"step", "action", "what", "event"}
_HIGHEST_STEP = 1 << 53  # what a browser can count to

Key = tuple[str, str]
"""Quantity and part: ("loss", ""), ("components", "kl"), ("lr", "0")."""


class RunRecord:
    """Feed it batches of lines in their order. A run that starts anew in the same folder replaces the earlier one."""

    def __init__(self) -> None:
        self.environment: dict[str, Any] = {}
        self.process: dict[str, Any] = {}  # which one writes the record
        self.closed = False  # by the run itself
        self.earlier_runs = 0
        self._resumes = False
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.last: dict[str, Any] = {}
        self.best_loss: tuple[float, int] | None = None
        self.series: dict[Key, Envelope] = {}
        self.series_left_out: set[Key] = set()
        self.actions: Counter[str] = Counter()
        self.action_steps: dict[str, Envelope] = {}
        self.first_events: list[dict[str, Any]] = []
        self.last_events: deque[dict[str, Any]] = deque(maxlen=LAST_EVENTS)
        self.events_seen = 0
        self.forecasts: deque[dict[str, Any]] = deque(maxlen=100)
        self.went_back: int | None = None  # the step before which it last did
        self.findings: list[dict[str, Any]] = []
        self.incident_steps: deque[tuple[int, str]] = deque(maxlen=1000)
        self.times_seen: dict[str, int] = {}
        self.heat = HeatMap()
        self.generation = getattr(self, "generation", 0) + 1

    def feed(self, lines: Sequence[dict[str, Any]]) -> None:
        """Add lines in their order; steps are taken together, many at a time."""
        steps: list[dict[str, Any]] = []
        for line in lines:
            step = line.get("step")
            if type(step) is not int or not 0 <= step < _HIGHEST_STEP:
                continue
            if "event" in line:
                if line["event"] == "start":
                    self._add_steps(steps)
                    steps, self._resumes = [], self.count > 0
                self._event(line, step)
                continue
            if self._resumes:
                self._begin_again_or_go_on(step)
            if line.get("action", "none") != "none":
                self._note(line)
            steps.append(line)
        self._add_steps(steps)

    def _begin_again_or_go_on(self, step: int) -> None:
        """The first step after a second start: from the beginning it is a new run, else the old one goes on."""
        self._resumes = False
        if self.first_step is not None and step <= self.first_step:
            starts = [line for line in self.events if text(line, "event") == "start"][-1:]
            self._clear()
            self.earlier_runs += 1
            for line in starts:
                self._note(line)

    @property
    def applied(self) -> int:
        """Steps whose update was made."""
        return self.count - self.refused

    @property
    def refused(self) -> int:
        """By the guard, or by a loss scaler, which looks for its scale that way."""
        return sum(self.actions.values())

    @property
    def failed(self) -> int:
        """Without those that a scaler skips by its own rules: they are part of a healthy run."""
        return self.refused - self.actions["backoff"]

    @property
    def was_abandoned(self) -> bool:
        """It ended without closing: nobody can write the rest of it any more, as far as can be known from here."""
        return not self.closed and lives(self.process) is False

    @property
    def events(self) -> list[dict[str, Any]]:
        return [*self.first_events, *self.last_events]

    @property
    def events_left_out(self) -> int:
        return self.events_seen - len(self.first_events) - len(self.last_events)

    def _event(self, line: dict[str, Any], step: int) -> None:
        kind = text(line, "event")
        if kind == "start":
            self.environment = mapping(line, "environment") or self.environment
            self.process, self.closed = mapping(line, "process"), False
        if kind == "vitals":
            self._vitals(line, step)
            return
        if kind == "forecast":
            self.forecasts.append(line)
            self.action_steps.setdefault("forecast", Envelope()).extend([step], [1.0])
        elif kind == "rollback":  # beside a refused step that says so, too, it is the same mark
            self.went_back = step
            self.action_steps.setdefault("rollback", Envelope()).extend([max(0, step - 1)], [1.0])
        elif kind == "finding":
            finding = mapping(line, "finding")
            if finding and len(self.findings) < FIRST_EVENTS:
                self.findings.append(finding)
        elif kind == "incident":
            number_of = text(line, "incident")
            self.incident_steps.append((step, number_of))
            self.times_seen[number_of] = whole(line, "times") or 1
        elif kind == "end":
            self.closed = True
        self._note(line)

    def _note(self, line: dict[str, Any]) -> None:
        self.events_seen += 1
        (self.first_events if len(self.first_events) < FIRST_EVENTS else self.last_events).append(line)

    def _vitals(self, line: dict[str, Any], step: int) -> None:
        modules = mapping(line, "modules")
        self.heat.add(step, modules)
        peaks = [to_number(v[0]) for v in modules.values() if isinstance(v, list) and v]
        known = [peak for peak in peaks if peak is not None]
        worst = next((peak for peak in known if peak != peak), None)
        if known:
            self._put("largest output", "", [step], [jsonable(max(known) if worst is None else worst)])
        for index, group in enumerate(objects(line, "groups")[:_PARTS]):
            for name, value in islice(group.items(), _PARTS):
                self._put(f"group {name}", str(index), [step], [value])
        for quantity in ("zeros", "exponents"):
            for name, value in islice(mapping(line, quantity).items(), _PARTS):
                self._put(quantity, name, [step], [value])
        for quantity in ("logits", "skipped"):
            if line.get(quantity) is not None:
                self._put(quantity, "", [step], [line[quantity]])
        room = line.get("headroom")
        # none at all: an output was not finite, and 0 has no place on a logarithmic axis
        if room is not None:
            self._put("headroom", "", [step], [room or ("inf" if worst is None else "nan")])

    def _add_steps(self, lines: list[dict[str, Any]]) -> None:
        if not lines:
            return
        steps = as_range([line["step"] for line in lines])
        self.count += len(lines)
        low, high = min(steps), max(steps)
        self.first_step = low if self.first_step is None else min(self.first_step, low)
        self.last_step = high if self.last_step is None else max(self.last_step, high)
        self.last = lines[-1]
        self._actions(lines)
        for key in dict.fromkeys(chain.from_iterable(lines)):
            if key not in _NOT_DRAWN:
                self._quantity(key, steps, _column(lines, key))

    def _actions(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            action = line.get("action", "none")
            if action == "none" or not isinstance(action, str):
                continue
            if action not in self.action_steps and len(self.action_steps) >= _PARTS:
                action = "other"
            self.actions[action] += 1
            self.action_steps.setdefault(action, Envelope()).extend([line["step"]], [1.0])

    def _quantity(self, key: str, steps: Sequence[int], column: list[Any]) -> None:
        example = next((value for value in column if value is not None), None)
        if isinstance(example, dict):
            names = dict.fromkeys(name for value in column if isinstance(value, dict) for name in value)
            for name in islice(names, _MANY):
                self._part(key, name, steps, _column(column, name), few=len(names) <= _FEW)
        elif isinstance(example, list):
            longest = max(len(value) for value in column if isinstance(value, list))
            for index in range(min(longest, _PARTS)):
                self._put(key, str(index), steps, _column(column, index))
        else:
            self._put(key, "", steps, column)

    def _part(self, key: str, name: str, steps: Sequence[int], column: list[Any], *, few: bool) -> None:
        """A named part is a number, or the two ends of a range: of few ranges both ends, of many the magnitude."""
        if not any(isinstance(value, list) for value in column):
            self._put(key, name, steps, column)
        elif few:
            for end, index in (("least", 0), ("greatest", 1)):
                self._put(f"{key} {name}", end, steps, _column(column, index))
        else:
            self._put(key, name, steps, [_magnitude(value) for value in column])

    def _put(self, quantity: str, part: str, steps: Sequence[int], column: list[Json]) -> None:
        key = (quantity, part)
        envelope = self.series.get(key)
        if envelope is None:
            if len(self.series) >= SERIES:
                if len(self.series_left_out) < SERIES:
                    self.series_left_out.add(key)
                return
            envelope = Envelope()
            envelope.extend(steps, column)
            if envelope.buckets:
                self.series[key] = envelope
        else:
            envelope.extend(steps, column)
        if key == ("loss", ""):
            self._best(steps, column)

    def _best(self, steps: Sequence[int], column: list[Json]) -> None:
        numbers = [value for value in column if type(value) is float]
        if numbers:
            least = min(numbers)
            if self.best_loss is None or least < self.best_loss[0]:
                self.best_loss = least, steps[column.index(least)]


def as_range(steps: list[int]) -> Sequence[int]:
    """Consecutive steps as a range; others as they are."""
    consecutive = range(steps[0], steps[0] + len(steps))
    return consecutive if steps[-1] == consecutive[-1] and steps == list(consecutive) else steps


def _column(rows: Sequence[Any], key: str | int) -> list[Any]:
    """One entry of each row (an object or a list); None where a row does not have it. Mostly all have it."""
    try:
        return list(map(itemgetter(key), rows))
    except (LookupError, TypeError):
        return [_entry(row, key) for row in rows]


def _magnitude(ends: Any) -> Json:
    """Of a range; an end that is not finite counts most."""
    numbers = (
        [number for end in ends if (number := to_number(end)) is not None] if isinstance(ends, list) else []
    )
    bad = next((number for number in numbers if not math.isfinite(number)), None)
    return jsonable(bad if bad is not None else max(map(abs, numbers), default=None))


def _entry(row: Any, key: str | int) -> Any:
    if isinstance(row, dict):
        return row.get(key)
    return row[key] if isinstance(row, list) and isinstance(key, int) and key < len(row) else None
