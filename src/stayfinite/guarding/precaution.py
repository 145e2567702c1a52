"""Precaution: what is done about a forecast, between two steps, while all state is still good."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from stayfinite.findings.rule import examine
from stayfinite.findings.subjects.outlook import Outlook
from stayfinite.guarding.run import GuardedRun
from stayfinite.recover import RunStopped

_STEPS_BETWEEN_COPIES = 16
"""Under an alarm without growth, and without a failure all the while."""
_EDGE, _OLD = 1.2, 3 * _STEPS_BETWEEN_COPIES
"""A state with less room than that does not take the place of one with more until that one is old."""


class Precaution:
    """Warns, and does what the policy says: keeps a copy, lowers the learning rate, or stops."""

    def __init__(self, run: GuardedRun) -> None:
        self._run = run
        self._kept: int | None = None
        self._kept_room: float | None = None
        self._grew = False
        self._said: set[str] = set()

    def before_step(self, step: int, keep: Callable[[int], None], stop: Callable[[], Path | None]) -> None:
        """Look at what the last sampled step foretold. `keep` copies the state, `stop` saves it for the end.

        They are not held: a guard that nobody holds any more must go at once, and its record with it.
        """
        foresight, policy = self._run.foresight, self._run.policy
        if not foresight.has_news():
            return
        outlook = foresight.take_outlook()
        if outlook is not None:
            self._warn(outlook)
        if not foresight.alarmed:
            self._said.clear()
        if self._run.ranks.together:
            return  # each rank samples when it has time and sees its own batches: what it foretells is no decision
        if policy.foresee != "warn" and self._wants_copy(step):
            self._keep_copy(step, keep)
        if outlook is not None and policy.foresee == "lower-lr":
            self._run.reporter.tell("lower-lr", f"a forecast: {self._run.recovery.lower_rates()}")
        if outlook is not None and policy.foresee == "stop":
            self._end(outlook, stop)

    @property
    def may_copy(self) -> bool:
        """Would a copy of now be one to go back to? Not while something grows, nor under an alarm."""
        foresight = self._run.foresight
        if self._run.ranks.together:
            return True
        return foresight.is_steady and not foresight.growing and not foresight.alarmed

    def _wants_copy(self, step: int) -> bool:
        """When growth sets in, before it has gone far; under an alarm without growth when it went well for a while."""
        foresight = self._run.foresight
        growing = foresight.growing
        begins, self._grew = growing > 0 and not self._grew, growing > 0
        if growing:
            return begins and foresight.is_steady
        if not foresight.alarmed or foresight.has_grown:
            return False  # what grew and rests for a while is not from before its growth
        since = [last for last in (self._kept, foresight.failed_last) if last is not None]
        if since and step - max(since) < _STEPS_BETWEEN_COPIES:
            return False
        return self._leaves_room(step)

    def _leaves_room(self, step: int) -> bool:
        """A state at the edge would be gone back to and fail again with almost every batch."""
        now, kept = self._run.foresight.room, self._kept_room
        if self._kept is None or now is None or kept is None or step - self._kept >= _OLD:
            return True
        return now >= min(_EDGE, kept)

    def _warn(self, outlook: Outlook) -> None:
        """The finding once, until it has calmed down; every forecast into the record."""
        reporter = self._run.reporter
        if outlook.what not in self._said:
            self._said.add(outlook.what)
            for finding in examine(outlook):
                reporter.finding(finding, "forecast")
        reporter.note(
            "forecast",
            steps_left=[round(outlook.low), round(outlook.high) if math.isfinite(outlook.high) else None],
            limit=outlook.limit,
            what=f"{outlook.what} of {outlook.where}" if outlook.where else outlook.what,
            value=float(f"{outlook.value:.4g}"),
            factor=float(f"{outlook.factor:.4g}"),
            modules=outlook.modules[:16],
        )

    def _keep_copy(self, step: int, keep: Callable[[int], None]) -> None:
        keep(step)
        if self._run.recovery.last_good.step == step:
            self._kept, self._kept_room = step, self._run.foresight.room
            self._run.reporter.note("keep", what=f"the state before step {step} was verified and kept")

    def _end(self, outlook: Outlook, stop: Callable[[], Path | None]) -> None:
        saved = stop()
        what = f"{outlook.what} of {outlook.where}"
        where = f"A clean checkpoint is {saved}." if saved else "No clean checkpoint could be written."
        message = (
            f"stopped by a forecast, as Policy(foresee='stop') says: {what} runs towards its limit. {where}"
        )
        self._run.reporter.tell("stop", message)
        raise RunStopped(message, str(saved) if saved else None)
