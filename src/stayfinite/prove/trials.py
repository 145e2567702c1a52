"""Trials: runs of the failing step or script within a budget of seconds, and which steps of them are followed."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from stayfinite.prove.trial import Plan, Run, TrialResult

_FOLLOWED_BEFORE, _FOLLOWED_AFTER = 2, 1  # steps around the failing one
_FURTHER_STEPS = 20


class Trials:
    """Gives plans to `run`, each with the time that is left. Steps far from the failing one are only watched."""

    def __init__(self, run: Run, seconds: float) -> None:
        self._run, self._end, self.seconds = run, time.monotonic() + seconds, seconds
        self._until: int | None = None
        self._first: int | None = None  # step that is followed; None: from the begin
        self._last: int | None = None
        self._took: list[float] = []
        self.cut_short = False  # something was left out for want of time

    def __call__(self, plan: Plan) -> TrialResult:
        """One run. What the plan does not say of steps is as it is for all."""
        plan = replace(
            plan,
            until=plan.until if plan.until is not None else self._until,
            follow_from=plan.follow_from if plan.follow_from is not None else self._first,
            follow_until=plan.follow_until if plan.follow_until is not None else self._last,
        )
        result = self._run(plan, max(1.0, self.left))
        if plan.arrangement is None:
            self._took.append(result.seconds)
        return result

    def seen_around(self, step: int) -> Plan | None:
        """An untouched run that is followed around this step only; None if that is hardly less than all of it."""
        first = step - _FOLLOWED_BEFORE
        if first < _FOLLOWED_BEFORE:
            return None
        return Plan(until=step + 1, follow_from=first)

    def follow_around(self, step: int, *, from_the_begin: bool) -> None:
        """From now on: so much of every run is followed, and then it goes on for some steps."""
        self._first = None if from_the_begin else step - _FOLLOWED_BEFORE
        self._last, self._until = step + _FOLLOWED_AFTER, step + _FURTHER_STEPS
        self._took = self._took[-1:]  # those before were followed for longer

    def located(self, plan: Plan, result: TrialResult) -> TrialResult:
        """A run that failed only where nobody followed, once more and followed from there on. That may show that it did
        not: a norm overflows before its gradients do."""
        if not result.failures or any(step.judged for step in result.failures) or self.over():
            return result
        first = max(0, result.failures[0].step - _FOLLOWED_BEFORE)
        again = self(replace(plan, follow_from=first, follow_until=self._until))
        return again if again.ended == "finished" else result

    @property
    def typical(self) -> float:
        """Seconds that a run takes."""
        return median(self._took) if self._took else 0.0

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def over(self) -> bool:
        """Whether there is no time for another run; then something is left out."""
        if self.left > self.typical:
            return False
        self.cut_short = True
        return True
