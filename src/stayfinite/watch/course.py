"""Course: what the samples of a run say about where it is going, since it began or last went back. Pure, no torch."""

from __future__ import annotations

import math
from collections import deque

from stayfinite.findings.subjects.outlook import ModuleVital, Outlook, VitalSample
from stayfinite.watch import forecast

_STEADY = math.log(2.0)
_SAMPLES_KEPT = 64
_ENOUGH_FAILURES, _SOON = 2, 4
"""So many failures under an alarm within so many steps are what was foretold."""
_ARRIVED = 8
"""So many samples in a row past the limit are the end of a growth, also if no step has failed by it. A step that fails
is waited for that long, because it can be located."""
_ROOM, _LEAST_ROOM = 8, 4
"""Samples that the room is the median of, at the most and at the least."""
NEAR, _APPROACHES = 400, 4000
"""So few steps to the limit, as fast as it comes nearer now, are near; with so many it still comes nearer."""
_FAR = 30.0
"""So many times from its lowest value to now is a long way."""
_REST = 100
"""After so many steps without any more the growth is over: where it stands now is where the run is."""


class Course:
    """Told of every sample and every failure, it says what they mean."""

    def __init__(self) -> None:
        self._state = forecast.init()
        self._failures: deque[int] = deque(maxlen=_ENOUGH_FAILURES)  # steps, under an alarm
        self._grows = False  # the alarm is about a trend
        self._grew = 0  # the step at which it was last seen to
        self._failed: int | None = None
        self._since = 0  # the step at which the present course began
        self.samples: deque[VitalSample] = deque(maxlen=_SAMPLES_KEPT)

    def add(self, sample: VitalSample) -> Outlook | None:
        """One sample more; a forecast if there is a new one."""
        self.samples.append(sample)
        self._state, outlook = forecast.update(self._state, sample)
        if outlook is not None and self._tells_of_growth(outlook):
            self._grows, self._grew = True, sample.step
        elif self._state.growing or self._state.left <= _APPROACHES:
            self._grew = sample.step
        self._grows = self._grows and self.alarmed and sample.step - self._grew < _REST
        return outlook

    def _tells_of_growth(self, outlook: Outlook) -> bool:
        """Of a trend, or of a signal that has come near to its limit from far away, and still does."""
        came = outlook.value > _FAR * outlook.first_value and self._state.left <= NEAR
        return math.isfinite(outlook.high) or came

    def failed(self, step: int, *, alarmed: bool, sampled: bool) -> None:
        """A step failed; `alarmed` before it was looked at; `sampled`: the last sample is of this step."""
        self._failed = step
        if not alarmed:
            return
        if self._is_beyond and self._grows:
            self._failures.append(step)  # a growth that was followed to its end needs no second failure
        if self._is_beyond or not sampled:
            self._failures.append(step)

    def went_back(self, step: int) -> None:
        """The run goes on from an earlier state: what was growing there is not growing now."""
        self._state, self._grows = forecast.init(), False
        self._failed = self._since = step
        self._failures.clear()

    @property
    def _is_beyond(self) -> bool:
        return bool(self.samples) and forecast.exceeds(self.samples[-1])

    @property
    def is_urgent(self) -> bool:
        """Something grows towards a limit, or has grown past it: look more often."""
        return forecast.is_urgent(self._state) or (self._grows and self._is_beyond)

    @property
    def alarmed(self) -> bool:
        """A forecast was made, and what it is about has not calmed down."""
        return bool(self._state.told)

    @property
    def has_come_true(self) -> bool:
        """It failed as was foretold: by growth to its limit, or again and again where the limit was near all along.

        There one failure may have been its batch; with a second soon after it is the state.
        """
        if len(self._failures) < _ENOUGH_FAILURES or not self.alarmed:
            return False
        return self._failures[-1] - self._failures[0] <= _SOON

    @property
    def has_arrived(self) -> bool:
        """What grew is past its limit and stays there; a norm that divides by Inf hides it, and the loss is finite."""
        last = [sample for sample in self.samples if sample.step >= self._since][-_ARRIVED:]
        return self._grows and len(last) == _ARRIVED and all(map(forecast.exceeds, last))

    @property
    def has_grown(self) -> bool:
        """What was foretold was growth, and not a signal that has been near its limit all the time."""
        return self._grows

    @property
    def growing(self) -> float:
        """The share of the way to its limit that is behind what grows surely, in logarithms; 0 if nothing does."""
        return self._state.growing

    @property
    def is_steady(self) -> bool:
        """What is nearest to its limit has not grown much lately."""
        return self._state.risen <= _STEADY

    def steps_left(self, step: int) -> float:
        """From this step until something is at its limit, if it goes on as fast as it has of late; inf if it rests."""
        return self._state.left - (step - self.samples[-1].step) if self.samples else math.inf

    @property
    def room(self) -> float | None:
        """How often the limit is as large as the output nearest to it, of late; None before that is known."""
        seen = [room_of(sample) for sample in self.samples if sample.step >= self._since][-_ROOM:]
        return sorted(seen)[(len(seen) - 1) // 2] if len(seen) >= _LEAST_ROOM else None

    @property
    def failed_last(self) -> int | None:
        """The step that failed last, or after which the run went back; None if there was none."""
        return self._failed


def room_of(sample: VitalSample) -> float:
    """The least of all modules; 0 if something left its range."""
    return min(map(headroom, sample.modules.values()), default=math.inf)


def headroom(module: ModuleVital) -> float:
    """How often the limit is as large as what is there; modules whose dtype has none that matters come last."""
    return (module.limit or math.inf) / max(module.size, 1e-300)
