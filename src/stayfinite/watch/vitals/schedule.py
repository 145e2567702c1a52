"""Schedule: which steps are sampled. Densely at first and while something grows, else as seldom as it costs."""

from __future__ import annotations

import math

_FIRST_SAMPLES = 40
"""These are taken whatever they cost: a run that dies young is to be foreseen, too. They reach to step 128."""
_SAMPLES_AFTER_GOING_BACK = 24
_SHARE = 0.005
"""Of the run's time, spent on the samples after that."""
_PER_DOUBLING, _WIDEST = 16, 64
_DENSE_SAMPLES, _DENSE_A_STEP = 64.0, 0.03
"""Samples at every step while something runs towards a limit: so many at once, and so many earned a step."""
_OF_THE_WAY = 4
"""What comes nearer to a limit is looked at again before more than this part of the steps to there has gone by."""
_RANKS_EVERY = 64
"""With several ranks all must sample the same steps, and clocks differ: a fixed interval."""
_BYTES_AT_FIRST, _BYTES_A_STEP = 400_000, 40


class Schedule:
    """Told what samples cost and how long steps take, it says which step is next."""

    def __init__(self, *, several_ranks: bool = False) -> None:
        self._several = several_ranks
        self._samples = self._steps = self._written = self._next = 0
        self._spent = self._lived = 0.0
        self._origin = 0  # from where intervals are counted
        self._dense_left = _DENSE_SAMPLES
        # from this step on it is looked at, as often as is allowed while something grows
        self._due = math.inf
        self.urgent = False  # something grows towards a limit

    def wants(self, step: int) -> bool:
        if self._several:
            return step < _PER_DOUBLING or step % _RANKS_EVERY == 0
        if self._is_pressing(step) and self._dense_left >= 1:
            return True
        within = self._samples < _FIRST_SAMPLES or self._spent <= _SHARE * self._lived
        return within and step >= self._next

    def _is_pressing(self, step: int) -> bool:
        return self.urgent or step >= self._due

    def expects(self, step: int, *, sampling: bool) -> bool:
        """Will the step after this one be sampled, as far as is known?"""
        return self.wants(step + 1) and not (sampling and not self.urgent and self._after(step) > step + 1)

    def _after(self, step: int) -> int:
        return step + min(_WIDEST, 1 << (max(0, step - self._origin) // _PER_DOUBLING).bit_length())

    def sampled(self, step: int, seconds: float) -> None:
        """A sample was taken, at this cost."""
        free = self._samples < _FIRST_SAMPLES
        self._samples += 1
        self._next = self._after(step)
        if self._is_pressing(step) and not free:
            self._dense_left -= 1
        elif not free:
            self._spent += seconds
        self._due = math.inf

    def look_again(self, step: int, left: float) -> None:
        """So many steps are left, as fast as something comes nearer to a limit: not to be slept through."""
        self._due = step + max(1.0, left / _OF_THE_WAY)

    def lived(self, seconds: float) -> None:
        """A step, sampled or not, took so long."""
        self._steps += 1
        self._lived += seconds
        self._dense_left = min(_DENSE_SAMPLES, self._dense_left + _DENSE_A_STEP)

    def may_write(self, size: int) -> bool:
        """The record grows by a bounded number of bytes a step; a sample beyond it is looked at, but not written."""
        if self._written + size > _BYTES_AT_FIRST + _BYTES_A_STEP * self._steps:
            return False
        self._written += size
        return True

    def went_back(self, step: int) -> None:
        """The run goes on from an earlier state: it is looked at as at its beginning, for a while."""
        self._origin, self._next, self._due, self.urgent = step, step, math.inf, False
        self._samples = min(self._samples, _FIRST_SAMPLES - _SAMPLES_AFTER_GOING_BACK)
