"""Precaution: what is done about a forecast, between two steps, while all state is still good."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stayfinite.findings.rule import examine
from stayfinite.findings.subjects.outlook import Outlook
from stayfinite.findings.update_size import first_far
from stayfinite.guarding.keeper import Keeper
from stayfinite.guarding.run import GuardedRun
from stayfinite.recover import RunStopped


class Precaution:
    """Warns, and does what the policy says: keeps a copy, lowers the learning rate, or stops."""

    def __init__(self, run: GuardedRun, keeper: Keeper) -> None:
        self._run, self._keeper = run, keeper
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
        if not foresight.course.alarmed:
            self._said.clear()
        if self._run.ranks.together:
            return  # each rank samples when it has time and sees its own batches: what it foretells is no decision
        if foresight.course.has_arrived and self._may_go_back():
            self._go_back(step)
            return
        if policy.foresee != "warn" and self._keeper.wants(step, foresight.course):
            self._keep_copy(step, keep)
        if outlook is not None and policy.foresee == "lower-lr":
            self._run.reporter.tell("lower-lr", f"a forecast: {self._run.recovery.lower_rates()}")
        if outlook is not None and policy.foresee == "stop":
            self._end(outlook, stop)

    def may_copy(self, step: int) -> bool:
        """Would a copy of now be one to go back to? What one of several ranks sees decides nothing."""
        return self._run.ranks.together or self._keeper.may_replace(step, self._run.foresight.course)

    def _warn(self, outlook: Outlook) -> None:
        """The finding once, until it has calmed down; every forecast into the record."""
        reporter = self._run.reporter
        if outlook.what not in self._said:
            self._said.add(outlook.what)
            far = first_far(self._run.observers.history.whole)
            for finding in examine(replace(outlook, far=far)):
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
            self._keeper.kept(step, self._run.foresight.course)
            self._run.reporter.note("keep", what=f"the state before step {step} was verified and kept")

    def _may_go_back(self) -> bool:
        recovery = self._run.recovery
        return recovery.last_good.available and recovery.ladder.may_go_back_early

    def _go_back(self, step: int) -> None:
        """No step has failed yet, but what was foretold has come: every update from here on is lost."""
        run = self._run
        back = run.recovery.roll_back(step, grew=True, early=True)
        run.watcher.forget()
        run.foresight.went_back(step)
        run.reporter.tell(
            "rollback", f"before step {step}: what grows is past its limit, as was foretold; {back}"
        )

    def _end(self, outlook: Outlook, stop: Callable[[], Path | None]) -> None:
        saved = stop()
        what = f"{outlook.what} of {outlook.where}"
        where = f"A clean checkpoint is {saved}." if saved else "No clean checkpoint could be written."
        message = (
            f"stopped by a forecast, as Policy(foresee='stop') says: {what} runs towards its limit. {where}"
        )
        self._run.reporter.tell("stop", message)
        raise RunStopped(message, str(saved) if saved else None)
