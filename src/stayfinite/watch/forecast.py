"""Forecast: where the vitals are going. Pure: `init() -> state`, `update(state, sample) -> (state, outlook)`.

The trend is that of the logarithm; if growth slows down and ends short of the limit, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from stayfinite.findings.subjects.outlook import FLOAT16_LIMIT, Amplifier, ModuleVital, Outlook, VitalSample
from stayfinite.watch.trend import LEAST, WINDOW, Point, Trend, quantile, trend_of

_NEAR = 16
"""A limit is near if the trend reaches it within as many steps as it has been seen, or within this many."""
_HORIZON = 24
"""Nothing is said earlier: growth may end on the way. It is looked at often enough not to be said too late."""
_SOON = 4 * _NEAR
"""So few steps to a limit, and every one is looked at."""
_AS_FAST = 0.75
"""Growth that makes at least this part of another in the same time is about as fast."""
_COVERED, _COVERED_OF_LONG, _LONG = 0.5, 0.4, math.log(1e12)
"""Of the way from the lowest value seen to the limit, in logarithms; of a long way less is far enough to be sure."""
_NO_HEADROOM, _CALM, _DOUBLED = math.log(3.0), math.log(3.0), math.log(2.0)
_MOVES = math.log(1.02)
"""A signal differs by more than that from batch to batch; a mask, a large constant added to scores, does not."""
_BELOW = 0.999
_FEW = 4
_SCALE = "scale "
_WORDS = {
    "module": "largest output",
    "exp": "argument of exp",
    "score": "attention score",
    "scale": "loss scale",
}
_CANDIDATES = 24
_GAIN, _KINDS = 1.3, 3
_CARRIES = 0.7
"""A kind of module carries the large signal if the output of one of them is at least this power of the largest."""
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
_DTYPES = {FLOAT16_LIMIT: "float16"}


@dataclass(frozen=True, slots=True)
class ForecastState:
    """What was seen: a few samples of every module, and what was said about them."""

    series: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    lowest: Mapping[str, Point] = field(default_factory=dict)
    # by what: the step, and the steps left
    told: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    urgent: bool = False
    growing: float = 0.0  # how much of the way to its limit is behind what grows surely; 0 if nothing does
    quiet: int = 0  # samples in a row without anything that grows
    risen: float = 0.0  # by how much what is nearest to its limit has grown within the window, in logarithms
    # how far what was nearest was from its limit, since the beginning: the older, the sparser
    way: tuple[Point, ...] = ()
    left: float = math.inf  # steps until it is there if it goes on like that
    headroom: float = math.inf  # the smallest, in logarithms
    told_headroom: float = math.inf  # as it was when something was first said
    scale_held: int = 0  # samples in a row in which the loss scale has not fallen
    scale_found: bool = False  # it has held for a few, once


def init() -> ForecastState:
    return ForecastState()


def is_urgent(state: ForecastState) -> bool:
    """Something grows towards a limit: look more often."""
    return state.urgent


def exceeds(sample: VitalSample) -> bool:
    """Something has left the range it can be held in."""
    outputs = any(m.limit is not None and not m.size < _BELOW * m.limit for m in sample.modules.values())
    return outputs or any(not score < _BELOW * FLOAT16_LIMIT for score in sample.scores.values())


def update(state: ForecastState, sample: VitalSample) -> tuple[ForecastState, Outlook | None]:
    """One sample more; an outlook if a limit is near and the trend is sure, and this has not been said yet."""
    values = _values(sample)
    series = {key: points for key, points in state.series.items() if key in values or not sample.modules}
    lowest = dict(state.lowest)
    if _SCALE in values:
        state = _with_scale(state, series, lowest, values[_SCALE][0])
    for key, (value, _) in values.items():
        series[key] = (*series.get(key, ()), (sample.step, value))[-WINDOW:]
        if key not in lowest or value < lowest[key][1]:
            lowest[key] = (sample.step, value)
    near = sorted(values, key=lambda key: values[key][1] - values[key][0])[:_CANDIDATES]
    near += [key for key in values if not key.startswith("module ") and key not in near]
    headroom = min((limit - value for value, limit in values.values()), default=math.inf)
    way = _thinned((*state.way, (sample.step, -headroom))) if headroom < math.inf else state.way
    found: list[tuple[float, str, Trend | None]] = []
    urgent, growing, left = False, 0.0, math.inf
    for key in near:
        value, limit = values[key]
        trend = trend_of(series[key], limit, lowest[key][1])
        tight = key.startswith("module ") and _is_tight(series[key], limit)
        if trend is not None and trend.sure:
            within = max(_NEAR, trend.span)
            enough = _COVERED_OF_LONG if limit - lowest[key][1] > _LONG else _COVERED
            if trend.covered >= enough / 2 and trend.left <= 4 * within:
                growing, left = max(growing, trend.covered), min(left, trend.left)
                urgent = urgent or trend.left <= _SOON
            seen = trend.left <= within or (key == near[0] and _has_gone_on(way, trend))
            if trend.covered >= enough and trend.left <= _HORIZON and seen:
                found.append((trend.left, key, trend))
                continue
        if tight:
            urgent = True
            found.append((math.inf, key, trend))
    risen = max((values[key][0] - min(v for _, v in series[key]) for key in near[:1]), default=0.0)
    state = replace(
        state,
        series=series,
        lowest=lowest,
        urgent=urgent,
        growing=growing,
        risen=risen,
        left=min(left, _left(way)),
        way=way,
        headroom=headroom,
    )
    if not found:
        return state if exceeds(sample) else _calmed(state), None
    soonest, key, trend = min(found, key=lambda item: (item[0], values[item[1]][1] - values[item[1]][0]))
    what = _what(key)
    known = state.told.get(what)
    if known is not None and not soonest < known[1] / 2:
        return state, None
    if not state.told:
        state = replace(state, told_headroom=headroom)
    state = replace(state, told={**state.told, what: (sample.step, soonest)})
    return state, _outlook(sample, key, values[key], series[key], lowest[key], trend)


def amplifiers(modules: Mapping[str, ModuleVital]) -> tuple[Amplifier, ...]:
    """The kinds of modules that enlarge what they are given, the strongest first."""
    largest = max((m.size for m in modules.values() if math.isfinite(m.size)), default=1.0)
    carries = {m.kind for m in modules.values() if m.size >= max(largest, 1.0) ** _CARRIES}
    by_kind: dict[str, list[tuple[str, float]]] = {}
    for name, module in modules.items():
        if module.kind not in carries:
            continue
        if module.gain is not None and 0 < module.gain < math.inf and module.kind not in _CONTAINERS:
            by_kind.setdefault(module.kind, []).append((name, module.gain))
    found = []
    for kind, members in by_kind.items():
        gain = math.exp(sum(math.log(gain) for _, gain in members) / len(members))
        if len(members) > 1 and gain >= _GAIN:
            found.append(Amplifier(kind, gain, tuple(name for name, _ in members)))
    return tuple(sorted(found, key=lambda a: -a.gain * math.log(len(a.names) + 1))[:_KINDS])


def _values(sample: VitalSample) -> dict[str, tuple[float, float]]:
    """Everything that may run into a limit, as logarithms: value and limit."""
    found: dict[str, tuple[float, float]] = {}
    for name, module in sample.modules.items():
        if module.limit is not None and 0 < module.size < _BELOW * module.limit:
            found[f"module {name}"] = (math.log(module.size), math.log(module.limit))
    for place, (value, limit) in sample.exponents.items():
        if 1 < value < limit:
            found[f"exp {place}"] = (math.log(value), math.log(limit))
    for place, score in sample.scores.items():
        if 1 < score < _BELOW * FLOAT16_LIMIT:
            found[f"score {place}"] = (math.log(score), math.log(FLOAT16_LIMIT))
    if sample.scale is not None and sample.scale_floor is not None and sample.scale > sample.scale_floor > 0:
        found[_SCALE] = (-math.log(sample.scale), -math.log(sample.scale_floor))
    return found


def _with_scale(
    state: ForecastState, series: dict[str, tuple[Point, ...]], lowest: dict[str, Point], value: float
) -> ForecastState:
    """A scale that holds for a few samples is found, and a fall begins anew from there.

    Before, a scaler looks for it: it begins high and halves until the gradients fit, which may take many steps in a row
    and is no trend.
    """
    points = series.get(_SCALE, ())
    if not points:
        return state
    held = 0 if value > points[-1][1] else state.scale_held + 1
    found = state.scale_found or held >= _FEW
    if not found and not held:
        del series[_SCALE], lowest[_SCALE]
    elif held >= _FEW:
        series[_SCALE] = points[-1:]
        lowest[_SCALE] = points[-1]
    return replace(state, scale_held=held, scale_found=found)


def _what(key: str) -> str:
    return _WORDS[key.partition(" ")[0]]


def _left(way: Sequence[Point]) -> float:
    """Steps to the limit as fast as it comes nearer now, judged from every earlier point; inf where it does not.

    From a point on it must have doubled, beyond the difference of single batches, and still do so in the second half of
    the time since: a trend that has just begun counts in full, however long it was flat before; a slow one is seen
    however many samples were taken of late; one that has rested for as long as it lasted is over.
    """
    if not way:
        return math.inf
    step, value = way[-1]
    last = way[-WINDOW:]
    noise = quantile([abs(b[1] - a[1]) for a, b in pairwise(last)], 0.5) if len(last) >= LEAST else 0.0
    least, fastest, middle = max(_DOUBLED, 3 * noise), 0.0, 0
    for first, (s, v) in enumerate(way[:-1]):
        middle = max(middle, first)
        while middle + 1 < len(way) - 1 and way[middle + 1][0] <= (s + step) / 2:
            middle += 1
        s_middle, v_middle = way[middle]
        if value - v > least and value - v_middle > 3 * noise:
            fastest = max(fastest, min((value - v) / (step - s), (value - v_middle) / (step - s_middle)))
    return -value / fastest if fastest > 0 else math.inf


def _has_gone_on(way: Sequence[Point], trend: Trend) -> bool:
    """For as many steps as are left it came nearer about as fast as now, and no slower in the second half of them.

    The window holds few steps while each is sampled, however long the growth has lasted.
    """
    step, value = way[-1]
    earlier = [point for point in way if point[0] <= step - trend.left]
    middle = [point for point in way if point[0] <= step - trend.left / 2]
    if not earlier or middle[-1][0] == earlier[-1][0]:
        return False
    before = (middle[-1][1] - earlier[-1][1]) / (middle[-1][0] - earlier[-1][0])
    lately = (value - middle[-1][1]) / (step - middle[-1][0])
    return min(before, lately) >= _AS_FAST * trend.slope and lately >= _AS_FAST * before


def _thinned(way: Sequence[Point]) -> tuple[Point, ...]:
    """Of the older ones, a point between two that are closer to each other than an eighth of their age says no more."""
    now, older, recent = way[-1][0], way[:-WINDOW], way[-WINDOW:]
    kept: list[Point] = []
    for number, point in enumerate(older):
        after = older[number + 1] if number + 1 < len(older) else recent[0]
        if not kept or after[0] - kept[-1][0] >= (now - kept[-1][0]) / 8:
            kept.append(point)
    return (*kept, *recent)


def _is_tight(points: Sequence[Point], limit: float) -> bool:
    """It stands within a factor of 3 of float16's limit, and moves."""
    if limit != math.log(FLOAT16_LIMIT) or len(points) < _FEW:
        return False
    values = [value for _, value in points]
    near = [value for value in values if value >= limit - _NO_HEADROOM]
    return quantile(values[-_FEW:], 0.5) >= limit - _NO_HEADROOM and max(near) - min(near) > _MOVES


def _calmed(state: ForecastState) -> ForecastState:
    """What was said may be said again once the value has gone back, or has not grown for a whole window."""
    quiet = 0 if state.urgent else state.quiet + 1
    if state.told and (quiet >= WINDOW or state.headroom > state.told_headroom + _CALM):
        return replace(state, told={}, quiet=0)
    return replace(state, quiet=quiet)


def _outlook(
    sample: VitalSample,
    key: str,
    value: tuple[float, float],
    points: Sequence[Point],
    lowest: Point,
    trend: Trend | None,
) -> Outlook:
    where = key.partition(" ")[2]
    module = sample.modules.get(where)
    limit = FLOAT16_LIMIT if key.startswith("score ") else math.exp(value[1])
    headroom = value[1] - value[0]
    jump = max((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points) if b[0] > a[0])
    size = math.exp(-value[0]) if key == _SCALE else math.exp(value[0])
    first = (lowest[0], math.exp(-lowest[1]) if key == _SCALE else math.exp(lowest[1]))
    return Outlook(
        step=sample.step,
        what=_what(key),
        where=where,
        kind=module.kind if module is not None else "",
        value=size,
        limit=1 / limit
        if key == _SCALE
        else (module.limit if module is not None and module.limit else limit),
        factor=math.exp(trend.slope) if trend is not None else 1.0,
        low=max(1.0, trend.low if trend is not None else headroom / jump if jump > 0 else 1.0),
        high=max(1.0, trend.low, trend.high) if trend is not None else math.inf,
        first_step=first[0],
        first_value=first[1],
        dtype=_DTYPES.get(module.limit or 0.0, "") if module is not None else "",
        amplifiers=amplifiers(sample.modules) if key.startswith(("module ", "score ")) else (),
    )
