"""RateTrials: remedies that show what they are worth over many steps, tried on the steps since the last good copy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stayfinite.findings.mechanism.operands import LARGEST
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.guarding.past_steps import FURTHER
from stayfinite.guarding.trajectory import Course, Trajectory, passes_again, still_grows
from stayfinite.prove.attempted import Attempted
from stayfinite.remedies.remedy import Case, Remedy, prescriptions


class RateTrials:
    """Everything has to be done by `end`; what is not is said in `remark`."""

    def __init__(self, trajectory: Trajectory, case: Case, end: float, say: Callable[[str], None]) -> None:
        self._trajectory, self._case, self._end, self._say = trajectory, case, end, say
        self._one = 0.0  # seconds that one step takes
        self.remark = ""

    def added_to(self, report: ProofReport, attempted: Mapping[str, Attempted]) -> list[Tried]:
        """What was tried, with going back, a lower rate, warm-up, clipping, bounded growth: those that fit the birth.

        Where the state is to blame these come first, but for a wider dtype that is shown to last: then the growth has
        come to a rest by itself, and the narrow dtype was all that it did not fit.
        """
        steps = self._trajectory.steps
        self._say(f"making the last {steps} steps again, from the last good copy")
        null = self._trajectory.from_the_copy(self._left())
        if null.error or null.finite:
            self.remark = null.error or (
                f"made again from the last good copy, the last {steps} steps did not fail: no rate was tried"
            )
            return report.tried
        self._one = null.seconds / max(1, null.made + 1)
        of_state = report.blame == "state"
        found = self._courses(self._fitting(over_steps=True), null)
        by_growth = self._blocks() is not None and any(one.proved for one in found)
        found += self._courses((None,), null)
        sick = of_state or by_growth
        led = null if sick else None
        known = [self._ahead(one, attempted, led, by_growth=by_growth) for one in report.tried]
        found += self._courses(self._fitting(over_steps=False), null)
        found.sort(key=lambda one: (not one.proved, one.popular, one.remedy != "bounded-growth"))
        if not of_state:
            return [*known, *found]
        lasting = [one for one in known if one.proved and _is_wider(one, attempted)]
        return [*lasting, *found, *(one for one in known if one not in lasting)]

    def _courses(self, remedies: Sequence[Remedy | None], null: Course) -> list[Tried]:
        """Each over the same steps. `None`: going back, at a lower rate."""
        done: list[Tried] = []
        steps = self._trajectory.steps
        for remedy in remedies:
            if self._is_over(steps + FURTHER):
                break
            name = remedy.name if remedy is not None else "going back"
            self._say(f"trying {name} on the last {steps} steps")
            done.append(self._one_course(remedy, null))
        return done

    def _is_over(self, steps: int) -> bool:
        """Whether there is no time for so many steps."""
        if self._left() >= self._one * steps:
            return False
        self.remark = "the budget was used up before everything was tried on the last steps"
        return True

    def _one_course(self, remedy: Remedy | None, null: Course) -> Tried:
        if remedy is None:
            return self._trajectory.rolled_back(self._left())
        course = self._trajectory.from_the_copy(self._left(), remedy)
        tried = self._trajectory.judged(
            remedy.name, remedy.sentence, course, null if remedy.over_steps else None
        )
        return replace(tried, popular=remedy.popular)

    def _fitting(self, *, over_steps: bool) -> list[Remedy]:
        """Those that change no training step that is healthy, or those that change every one."""
        fitting = [one.remedy for one in prescriptions(self._case)]
        of_updates = [one for one in fitting if one.of_updates and one.trains_otherwise]
        found = [one for one in fitting if one.over_steps] if over_steps else of_updates
        return sorted(found, key=lambda one: (one.rank, one.name))

    def _ahead(
        self, one: Tried, attempted: Mapping[str, Attempted], led: Course | None, *, by_growth: bool
    ) -> Tried:
        """A wider dtype: is it finite in the next steps too, and has the growth ended?

        `led`: the steps that led there, where the state is sick. `by_growth`: repeated blocks enlarge, and what bounds
        that, and nothing else, makes the same steps finite.
        """
        if one.verdict not in ("proved", "unclear") or not _is_wider(one, attempted):
            return one
        known = attempted[one.remedy]
        self._say(f"looking {FURTHER} steps ahead with {one.remedy}")
        course = self._trajectory.from_here(self._left(), known.remedies, known.texts)
        if course.error and led is None:
            return one
        if course.error:
            why = "finite now; there was no time to see whether it lasts, with a state that has grown"
            return replace(one, verdict="unclear", reason=why)
        steps = max(0, course.made - 1)
        later = _fails_later(course)
        if (
            led is not None
        ):  # what even float32 cannot hold is no matter of room, however slowly it still grows
            later = later or _grows_on(course, led if self._case.birth.dtype == "float16" else Course())
        if by_growth:
            later = later or self._lives_on(course)
        if later is None:
            return replace(one, steps=steps)
        return replace(one, verdict="postpones", reason=later, steps=steps)

    def _lives_on(self, course: Course) -> str | None:
        """Outputs go again where the narrower dtype cannot hold them: more room, and the growth as it was."""
        dtype = self._case.birth.dtype
        limit = LARGEST.get(dtype, math.inf)
        past = passes_again(course, limit)
        if past is None:
            return None
        blocks = self._blocks()
        assert blocks is not None
        each = f"each of {blocks[1]} `{blocks[0]}` still enlarges {blocks[2]:.2g} times"
        return (
            f"finite now, but {each}, and outputs pass {limit:g}, where {dtype} ends, in {past} of the next "
            f"{len(course.sizes) - 1} steps: it postpones, more room for the same growth"
        )

    def _blocks(self) -> tuple[str, int, float] | None:
        """Blocks that enlarge one after the other: their class, how many, how many times each."""
        growth = self._case.step.growth
        return growth.blocks if growth is not None else None

    def _left(self) -> float:
        return max(1.0, self._end - time.monotonic())


def _is_wider(one: Tried, attempted: Mapping[str, Attempted]) -> bool:
    known = attempted.get(one.remedy)
    return known is not None and not one.control and any(remedy.only_wider for remedy in known.remedies)


def _fails_later(course: Course) -> str | None:
    if course.failed_at is None:
        return None
    later = "at the next step" if course.failed_at == 1 else f"{course.failed_at} steps later"
    return f"finite now, not finite {later}: it postpones, the state goes on growing"


def _grows_on(course: Course, led: Course) -> str | None:
    grown = still_grows(course, led)
    if grown is None:
        return None
    return f"finite now, but outputs grow on from {grown[0]:.2g} to {grown[1]:.2g} in the next steps: it postpones"
