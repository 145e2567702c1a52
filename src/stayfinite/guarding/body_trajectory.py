"""BodyTrajectory: the steps of a watched loop since the last good copy once more: its body, batch after batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.body_replay import BodyReplay
from stayfinite.guarding.loop_body import LoopBody
from stayfinite.guarding.past_steps import FURTHER, PastStep
from stayfinite.guarding.trajectory import CourseLog, Trajectory, largest_output
from stayfinite.prove.live_code import swapped
from stayfinite.recover.recovery import Recovery


class _Ended(BaseException):
    """A step was not finite: the body is not run any further."""


class BodyTrajectory(Trajectory):
    """The body makes forward pass, backward pass and update itself, as often as there are batches."""

    def __init__(
        self,
        recovery: Recovery,
        attempt: Attempt,
        past: Sequence[PastStep],
        latest: Sequence[PastStep],
        body: LoopBody,
    ) -> None:
        super().__init__(recovery, attempt, past, latest)
        self._body = body
        self._texts: Mapping[str, str] = {}

    def _swapped(self, texts: Mapping[str, str]) -> AbstractContextManager[None]:
        """In the child: the body is run as its text has it, other functions are swapped."""
        self._texts = texts
        return swapped(texts, required=not self._body.edited(texts))

    def _make(self, steps: Sequence[PastStep], factor: float, log: CourseLog) -> None:
        if factor == 1.0:  # as it was then; a run that goes back goes on counting
            self._recovery.ladder.counters.applied -= max(0, len(steps) - FURTHER - 1)
        replay = BodyReplay(self._recovery, self._attempt, self._body, self._texts)
        begins, ends, batches = _schedule(steps)
        after = sum(len(step.window.batches) for step in steps[len(steps) - FURTHER :])
        given = iter(range(len(batches)))
        sizes: list[float] = []

        @contextmanager
        def around(batch: Any) -> Iterator[None]:
            number = next(given)
            if number in begins:
                step = begins[number]
                self._prepare(steps[step], factor, repeated=step >= len(steps) - FURTHER)
            with largest_output() as found:
                yield
            sizes.extend(found)
            if number in ends:
                loss, bad, updates = replay.outcome()
                good = not bad and updates > 0 and math.isfinite(loss)
                log.add(loss, sizes, good=good)
                sizes.clear()
                if not good:
                    raise _Ended

        try:
            replay.make(batches, around, after)
        except _Ended:
            return


def _schedule(steps: Sequence[PastStep]) -> tuple[dict[int, int], set[int], list[Any]]:
    """All batches in a row; which of them begin a step (and which one), and which of them end one."""
    begins: dict[int, int] = {}
    ends: set[int] = set()
    batches: list[Any] = []
    for number, step in enumerate(steps):
        begins[len(batches)] = number
        batches += step.window.batches
        ends.add(len(batches) - 1)
    return begins, ends, batches
