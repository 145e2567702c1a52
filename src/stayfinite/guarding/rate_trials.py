"""RateTrials: remedies that show what they are worth over many steps, tried on the steps since the last good copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from stayfinite.findings.trial import Tried
from stayfinite.guarding.trajectory import FURTHER, Course, Trajectory, still_grows
from stayfinite.prove.attempted import Attempted
from stayfinite.remedies.remedy import Case, Remedy, all_remedies

_WIDER: Final = (
    "float32-operation",
    "autocast-off",
    "autocast-bfloat16",
    "bfloat16",
    "float32",
    "float32-accumulator",
)


class RateTrials:
    """Everything has to be done by `end`; what is not is said in `remark`."""

    def __init__(self, trajectory: Trajectory, case: Case, end: float, say: Callable[[str], None]) -> None:
        self._trajectory, self._case, self._end, self._say = trajectory, case, end, say
        self._one = 0.0  # seconds that one course takes
        self.remark = ""

    def tried(self) -> list[Tried]:
        """Going back, a lower rate, warm-up, clipping, bounded growth: those that fit the birth, best first."""
        steps = self._trajectory.steps
        self._say(f"making the last {steps} steps again, from the last good copy")
        null = self._trajectory.from_the_copy(self._left())
        if null.error or null.finite:
            self.remark = null.error or (
                f"made again from the last good copy, the last {steps} steps did not fail: no rate was tried"
            )
            return []
        self._one = null.seconds * (steps + FURTHER) / max(1, null.made + 1)
        done: list[Tried] = []
        for remedy in (*self._fitting(over_steps=True), None, *self._fitting(over_steps=False)):
            if done and self._left() < self._one:
                self.remark = "the budget was used up before everything was tried on the last steps"
                break
            self._say(
                f"trying {remedy.name if remedy is not None else 'going back'} on the last {steps} steps"
            )
            done.append(self._one_course(remedy, null))
        return sorted(done, key=lambda one: (not one.proved, one.popular, one.remedy != "bounded-growth"))

    def _one_course(self, remedy: Remedy | None, null: Course) -> Tried:
        """`None`: going back, at a lower rate."""
        if remedy is None:
            return self._trajectory.rolled_back(self._left())
        course = self._trajectory.from_the_copy(self._left(), remedy)
        tried = self._trajectory.judged(
            remedy.name, remedy.sentence, course, null if remedy.over_steps else None
        )
        return replace(tried, popular=remedy.popular)

    def _fitting(self, *, over_steps: bool) -> list[Remedy]:
        """Those that change no training step that is healthy, or those that change every one."""
        of_updates = [one for one in all_remedies() if one.of_updates and one.trains_otherwise]
        chosen = [one for one in all_remedies() if one.over_steps] if over_steps else of_updates
        found = [one for one in chosen if one.fits(self._case)]
        return sorted(found, key=lambda one: (one.rank, one.name))

    def look_ahead(self, tried: list[Tried], attempted: Mapping[str, Attempted]) -> list[Tried]:
        """A wider dtype for what has grown: is it finite in the next steps too, and has the growth ended?"""
        return [self._ahead(one, attempted) for one in tried]

    def _ahead(self, one: Tried, attempted: Mapping[str, Attempted]) -> Tried:
        known = attempted.get(one.remedy)
        if (
            one.remedy not in _WIDER
            or not one.proved
            or one.control
            or known is None
            or self._left() < self._one
        ):
            return one
        self._say(f"looking {FURTHER} steps ahead with {one.remedy}")
        course = self._trajectory.from_here(self._left(), () if known.texts else known.remedies, known.texts)
        if course.error:
            return one
        why = _postponed(course)
        steps = max(0, course.made - 1)
        return (
            replace(one, steps=steps)
            if why is None
            else replace(one, verdict="postpones", reason=why, steps=steps)
        )

    def _left(self) -> float:
        return max(1.0, self._end - time.monotonic())


def _postponed(course: Course) -> str | None:
    if course.failed_at is not None:
        later = "at the next step" if course.failed_at == 1 else f"{course.failed_at} steps later"
        return f"finite now, not finite {later}: it postpones, the state goes on growing"
    grown = still_grows(course)
    if grown is not None:
        return f"finite now, but outputs grow on from {grown[0]:.2g} to {grown[1]:.2g} in the next steps: it postpones"
    return None
