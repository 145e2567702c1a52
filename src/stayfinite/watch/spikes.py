"""Spike detectors: pure functions from (state, value) to (state, alarm), so they also run over an old log.

Median and median absolute deviation of the last values, in logarithms where the values are positive. A spike
must stand out by the run's own noise, exceed the worst of the recent past clearly, and be large in itself.
Values that are not finite never enter the statistics; nor do alarms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

WINDOW = 128
WARM_UP = 24
DEVIATIONS = 10.0
BEYOND_WORST = 3.0
_FAR_BEYOND_WORST = math.log(100)
"""A hundred times the largest recent value is a spike, however noisy the run is or however much it has improved."""
_MAD_TO_SIGMA = 1.4826
_LEAST_NOISE = 0.02


@dataclass(frozen=True, slots=True)
class SpikeState:
    """The recent healthy values of one quantity, and how large a jump must be to matter (as a factor)."""

    factor: float
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Spike:
    """One value that stands out, and what it stands out from."""

    value: float
    typical: float
    deviations: float


def update(state: SpikeState, value: float) -> tuple[SpikeState, Spike | None]:
    """Judge one value against the recent ones; a healthy one becomes part of them."""
    if not math.isfinite(value):
        return state, None
    spike = judge(state, value)
    if spike is not None:
        return state, spike
    return SpikeState(state.factor, (*state.values[-WINDOW + 1 :], value)), None


def judge(state: SpikeState, value: float) -> Spike | None:
    """Is this value a spike?"""
    if len(state.values) < WARM_UP or not math.isfinite(value) or value <= max(state.values):
        return None  # the ordinary case, decided without any statistics
    if 0 < value <= state.factor * min(state.values):
        return None  # the largest so far, but no jump
    typical = median(state.values)
    if min(state.values) >= 0:
        known = [math.log(v) for v in state.values if v > 0]
        if len(known) < WARM_UP:
            return None  # a loss that is mostly zero (hinge, triplet) gives no scale to measure a jump by
        excess, least_excess = math.log(value) - median(known), math.log(state.factor)
        least_noise, far = _LEAST_NOISE, _FAR_BEYOND_WORST
    else:
        known = list(state.values)
        size = max(abs(typical), max(known) - min(known))
        excess, least_excess = value - typical, (state.factor - 1) * size
        least_noise, far = _LEAST_NOISE * size, math.inf
    center = median(known)
    noise = max(_MAD_TO_SIGMA * median(abs(v - center) for v in known), least_noise)
    worst = max(known) - center
    if excess > max(min(max(DEVIATIONS * noise, BEYOND_WORST * worst), worst + far), least_excess):
        return Spike(value, typical, excess / noise)
    return None


def forget(state: SpikeState) -> SpikeState:
    """Start anew, for example after the level of the loss has changed for good."""
    return SpikeState(state.factor)
