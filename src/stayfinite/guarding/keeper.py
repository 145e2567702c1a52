"""Keeper: which states are worth a copy to go back to. Pure: the course of the run in, yes or no out.

Two things are asked of the copy that is there when a run fails: that it is from before the growth which led there, and
that little is lost by going back to it. So none is taken while a limit comes near, and as many as ever while none does,
however much a healthy run grows.
"""

from __future__ import annotations

from stayfinite.watch.course import NEAR, Course

_STEPS_BETWEEN_COPIES = 16
"""Under an alarm without growth, and without a failure all the while."""
_EDGE, _OLD = 1.2, 3 * _STEPS_BETWEEN_COPIES
"""A state with less room than that does not take the place of one with more until that one is old."""
_BEGUN = 0.5
"""Growth that has more than this of its way to the limit behind it, in logarithms, does not set in: it goes on."""


class Keeper:
    """Remembers which copies were taken on its word."""

    def __init__(self, every: int) -> None:
        self._every = every  # steps between two regular copies; 0: there are none
        self._kept: int | None = None
        self._kept_room: float | None = None
        self._grew = False

    def is_due(self, step: int) -> bool:
        """Is it time for a regular copy?

        Besides every so many steps at 1, 2, 4, 8, ...: a run that fails before the first of those is not sent back to
        its beginning.
        """
        if self._every <= 0:
            return False
        return step % self._every == 0 or (0 < step < self._every and step & (step - 1) == 0)

    def may_replace(self, step: int, course: Course) -> bool:
        """Would a regular copy of now be one to go back to? Not under an alarm, nor while a limit comes near."""
        return not course.alarmed and course.steps_left(step) > NEAR

    def wants(self, step: int, course: Course) -> bool:
        """One beside the regular ones: when growth sets in, before it has gone far; under an alarm without growth when
        it went well for a while."""
        growing = course.growing
        begins, self._grew = growing > 0 and not self._grew, growing > 0
        if growing:
            return begins and course.is_steady and growing <= _BEGUN
        if not course.alarmed or course.has_grown:
            return False  # what grew and rests for a while is not from before its growth
        since = [last for last in (self._kept, course.failed_last) if last is not None]
        if since and step - max(since) < _STEPS_BETWEEN_COPIES:
            return False
        return self._leaves_room(step, course)

    def kept(self, step: int, course: Course) -> None:
        """The copy that it wanted was taken."""
        self._kept, self._kept_room = step, course.room

    def _leaves_room(self, step: int, course: Course) -> bool:
        """A state at the edge would be gone back to and fail again with almost every batch."""
        now, kept = course.room, self._kept_room
        if self._kept is None or now is None or kept is None or step - self._kept >= _OLD:
            return True
        return now >= min(_EDGE, kept)
