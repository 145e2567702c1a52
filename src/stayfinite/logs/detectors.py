"""Detectors over the values of one series: `update(state, values) -> (state, alarms)`, pure, so that the same code
runs over an old log and over one that is being written. An alarm is the index of a value and what was usual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stayfinite.watch.spikes import WARM_UP, WINDOW, SpikeState, judge

_STRIDE, _LONG_STRIDE, _SETTLED = 8, 128, 2048
"""How many values are judged together, at the start of a log and once it is long."""
_BEYOND = 1.2
"""A value that is not clearly above the recent largest is no spike; saves the statistics of noise."""
_NEW_LEVEL = 32
"""So many alarms in a row are a new level, not spikes."""
RATE_JUMP = 3.0


@dataclass(frozen=True, slots=True)
class Alarm:
    index: int
    usual: float


@dataclass(frozen=True, slots=True)
class SpikeTrail:
    """The recent healthy values of a series, how many were seen, and how many alarms came in a row."""

    factor: float
    values: tuple[float, ...] = ()
    seen: int = 0
    streak: int = 0


def update_spikes(state: SpikeTrail, values: Sequence[float]) -> tuple[SpikeTrail, list[Alarm]]:
    """Values that stand far out from the recent ones, by the same measure as in a live run.

    A few values are judged together against those before them: when the largest of them is no spike, none is.
    """
    alarms: list[Alarm] = []
    known, seen, streak, begin = list(state.values), state.seen, state.streak, 0
    while begin < len(values):
        stride = _STRIDE if seen < _SETTLED else _LONG_STRIDE
        part = values[begin : begin + stride]
        top = max(part)
        if not math.isfinite(top) or not math.isfinite(sum(part)):
            part = [value for value in part if math.isfinite(value)]
            top = max(part, default=-math.inf)
        if len(known) >= WARM_UP and top > _BEYOND * max(known):
            reference = SpikeState(state.factor, tuple(known))
            if judge(reference, top) is not None:
                part = []
                for index in range(begin, min(begin + stride, len(values))):
                    spike = judge(reference, values[index])
                    if spike is not None:
                        streak += 1
                        alarms += [Alarm(index, spike.typical)] if streak <= _NEW_LEVEL else []
                    elif math.isfinite(values[index]):
                        part.append(values[index])
                        streak = 0
                if streak > _NEW_LEVEL:
                    known, streak = [], 0
        known = [*known, *part][-WINDOW:]
        seen += stride
        begin += stride
    return SpikeTrail(state.factor, tuple(known), seen, streak), alarms


@dataclass(frozen=True, slots=True)
class ScaleTrail:
    """A loss scale: its last value, its highest, and how often it fell since it last grew."""

    last: float = math.nan
    highest: float = 0.0
    falls: int = 0
    falls_in_a_row: int = 0


def update_scale(state: ScaleTrail, values: Sequence[float]) -> tuple[ScaleTrail, list[Alarm]]:
    """Every fall of the loss scale."""
    alarms: list[Alarm] = []
    for index, value in enumerate(values):
        if value == state.last or math.isnan(value):
            continue
        if value < state.last:
            alarms.append(Alarm(index, state.last))
            state = replace(state, last=value, falls=state.falls + 1, falls_in_a_row=state.falls_in_a_row + 1)
        else:
            state = replace(state, last=value, highest=max(state.highest, value), falls_in_a_row=0)
    return state, alarms


@dataclass(frozen=True, slots=True)
class RateTrail:
    last: float = math.nan


def update_rate(state: RateTrail, values: Sequence[float]) -> tuple[RateTrail, list[Alarm]]:
    """A learning rate that is three times the one before: a restart, a resume, or a mistake."""
    last = state.last
    if not values or (values[0] == last and min(values) == max(values)):
        return state, []
    alarms = []
    for index, value in enumerate(values):
        if last > 0 and value > RATE_JUMP * last:
            alarms.append(Alarm(index, last))
        last = value
    return RateTrail(last), alarms
