"""Trajectory: the steps since the last good copy once more, in a forked child, with a remedy in effect."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from stayfinite.findings import Json
from stayfinite.findings.trial import Tried
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.past_steps import FURTHER, PastStep
from stayfinite.guarding.trial_replay import norm_is_finite
from stayfinite.prove.judgement import MOVES_TOO_MUCH
from stayfinite.prove.live_code import swapped
from stayfinite.recover.recovery import Recovery
from stayfinite.remedies.remedy import Remedy
from stayfinite.sandbox.fork import forked
from stayfinite.watch.finite import all_finite
from stayfinite.watch.losses import as_loss, split_aux
from stayfinite.watch.watcher import Window

_GROWS: Final = 2.0
_GOES_ON: Final = 1 / 3
"""Of the pace in the second half of the way to the failure: what is slower comes to a rest."""
_FEW: Final = 4
_MOVED: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Course:
    """How the steps went: which was the first that was not finite, and how large outputs were."""

    made: int = 0
    failed_at: int | None = None  # counted from the first step that was made again
    error: str = ""
    first_loss: float | None = None
    loss: float | None = None
    sizes: tuple[float, ...] = ()  # the largest output of any module, step by step
    seconds: float = 0.0

    @property
    def finite(self) -> bool:
        return self.failed_at is None and not self.error


class CourseLog:
    """What a child writes down of its steps."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._sizes: list[float] = []
        self._made = 0

    def add(self, loss: float, sizes: Sequence[float], *, good: bool) -> None:
        self._losses.append(loss)
        size = max(sizes, default=0.0)
        self._sizes.append(size if math.isfinite(size) else 1e300)
        self._made += good

    def told(self) -> dict[str, Any]:
        """For `Course`; a step that was begun and is not made is the one that failed."""
        ends = [self._losses[0], self._losses[-1]] if self._losses else [math.nan, math.nan]
        first, last = (loss if math.isfinite(loss) else None for loss in ends)
        failed_at = self._made if self._made < len(self._losses) else None
        return {
            "made": self._made,
            "failed_at": failed_at,
            "sizes": list(self._sizes),
            "first_loss": first,
            "loss": last,
        }


class Trajectory:
    """`past` are the steps that were applied since the copy; the failing one comes after them.

    `latest`: the last applied steps, on whose batches it goes on. A copy may be as young as the failing step.
    """

    def __init__(
        self, recovery: Recovery, attempt: Attempt, past: Sequence[PastStep], latest: Sequence[PastStep]
    ) -> None:
        self._recovery, self._attempt, self._past, self._latest = recovery, attempt, past, latest
        self._lower_by = recovery.lower_by

    @property
    def steps(self) -> int:
        """From the copy to the failing step, with that."""
        return len(self._past) + 1

    def from_the_copy(self, seconds: float, remedy: Remedy | None = None, factor: float = 1.0) -> Course:
        """The steps since the last good copy, the failing one, and further ones."""
        remedies = () if remedy is None else (remedy,)
        return self._child(seconds, lambda: self._run(remedies, factor, from_copy=True))

    def from_here(self, seconds: float, remedies: Sequence[Remedy], texts: Mapping[str, str]) -> Course:
        """The failing step in the state in which it failed, and further ones."""

        def work() -> Json:
            with self._swapped(texts):
                return self._run(remedies, 1.0, from_copy=False)

        return self._child(seconds, work)

    def rolled_back(self, seconds: float) -> Tried:
        """What the policy would do: back to the copy, at a lower rate."""
        course = self.from_the_copy(seconds, factor=self._lower_by)
        sentence = f"go back to the last good copy, at {self._lower_by:g} times the learning rate"
        return self.judged("rolled-back", sentence, course)

    def judged(self, name: str, sentence: str, course: Course, null: Course | None = None) -> Tried:
        """The verdict on a course: it was finite up to the end, or when it failed."""
        moved = None
        if null is not None and course.first_loss is not None and null.first_loss is not None:
            moved = abs(course.first_loss - null.first_loss) / (abs(null.first_loss) + 1e-12)
            moved = 0.0 if moved < _MOVED else moved
        distorts = moved is not None and moved > MOVES_TOO_MUCH
        verdict = "failed" if not course.finite else ("distorts" if distorts else "proved")
        reasons = {
            "failed": self._reason(course),
            "distorts": f"finite, but a healthy loss moves by {moved or 0:.1g}",
        }
        return Tried(
            name,
            sentence,
            verdict,
            reasons.get(verdict, ""),
            loss=course.loss,
            distortion=moved,
            steps=max(0, course.made - self.steps),
            seconds=round(course.seconds, 3),
        )

    def _reason(self, course: Course) -> str:
        if course.error:
            return course.error
        at = (course.failed_at or 0) - len(self._past)
        when = "at the same step" if at == 0 else f"{abs(at)} steps {'later' if at > 0 else 'earlier'}"
        return f"from the last good copy on it is not finite either, {when}"

    # -- in the child ------------------------------------------------------------------------------------

    def _child(self, seconds: float, work: Callable[[], Json]) -> Course:
        begun = time.monotonic()
        done = forked(work, max(1.0, seconds))
        took = time.monotonic() - begun
        if not done.finished or not isinstance(done.value, dict):
            why = done.reason or f"the steps {done.status}"
            return Course(error=f"the steps could not be made again: {why}", seconds=took)
        told: dict[str, Any] = done.value
        return Course(**{**told, "sizes": tuple(told["sizes"])}, seconds=took)

    def _run(self, remedies: Sequence[Remedy], factor: float, *, from_copy: bool) -> Json:
        transaction = self._recovery.transaction
        own = PastStep((0, 0), self._attempt.window, transaction.rng, tuple(self._attempt.rates))
        if from_copy:
            self._recovery.last_good.restore()
            steps = [*self._past, own]
        else:
            transaction.undo(restore_rng=True)
            steps = [own]
        again = self._latest or [own]
        further = [again[number % len(again)] for number in range(FURTHER)]
        steps += [replace(step, rates=own.rates) for step in further]
        log = CourseLog()
        with ExitStack() as stack:
            for remedy in remedies:
                context = remedy.applied()
                if context is not None:
                    stack.enter_context(context)
            self._make(steps, factor, log)
        return log.told()

    def _swapped(self, texts: Mapping[str, str]) -> AbstractContextManager[None]:
        """The functions as these texts have them, while entered."""
        return swapped(texts)

    def _make(self, steps: Sequence[PastStep], factor: float, log: CourseLog) -> None:
        """One step after the other, until one is not finite."""
        scale = _Scale(self._recovery)
        for number, step in enumerate(steps):
            self._prepare(step, factor, repeated=number >= len(steps) - FURTHER)
            with largest_output() as sizes:
                loss = self._gradients(step.window, scale)
            good = math.isfinite(loss) and self._update(scale) and self._weights_are_finite()
            log.add(loss, sizes, good=good)
            if not good:
                return

    def _prepare(self, step: PastStep, factor: float, *, repeated: bool) -> None:
        """Random numbers and learning rates as the step had them; `repeated`: it comes after the failing one."""
        if step.rng is not None and not repeated:
            step.rng.restore()
        self._set_rates(step.rates, factor)

    def _gradients(self, window: Window, scale: _Scale) -> float:
        for optimizer in self._attempt.group:
            optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for call in window.calls:
            loss = as_loss(split_aux(call())[0]).total / len(window.calls)
            total += float(loss.detach().sum())
            if not math.isfinite(total):
                break
            scale.scaled(loss).backward()  # type: ignore[no-untyped-call]
        return total

    def _update(self, scale: _Scale) -> bool:
        """False if the gradients are bad, and no loss scale is to blame."""
        trained = self._attempt.trained()
        gradients = [p.grad for p in trained if p.grad is not None]
        if not norm_is_finite(gradients):
            return scale.halve()
        scale.unscale(gradients)
        if self._attempt.clip is not None and gradients:
            torch.nn.utils.clip_grad_norm_(trained, self._attempt.clip)
        for optimizer in self._attempt.optimizers:
            optimizer.step()
        return True

    def _weights_are_finite(self) -> bool:
        return all_finite(
            [p for o in self._attempt.optimizers for group in o.param_groups for p in group["params"]]
        )

    def _set_rates(self, rates: Sequence[float], factor: float) -> None:
        groups = [group for o in self._recovery.optimizers for group in o.param_groups if "lr" in group]
        for group, rate in zip(groups, rates, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor


class _Scale:
    """The loss scale of the child: halved where gradients overflow, as a scaler does."""

    def __init__(self, recovery: Recovery) -> None:
        self._floor = recovery.scaling.floor
        self._now = recovery.scaling.now() if recovery.scaling.on else None

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._now is None else loss * self._now

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        if self._now is not None:
            for gradient in gradients:
                gradient.div_(self._now)

    def halve(self) -> bool:
        """Whether there was something to halve."""
        if self._now is None or self._now / 2 < max(self._floor, 2.0**-14):
            return False
        self._now /= 2
        return True


@contextmanager
def largest_output() -> Iterator[list[float]]:
    """The largest magnitude that leaves each module, while entered."""
    sizes: list[float] = []

    def look(module: Any, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and output.numel():
            size = float(output.detach().abs().max())
            sizes.append(size if size == size else math.inf)

    handle = register_module_forward_hook(look)
    try:
        yield sizes
    finally:
        handle.remove()


def passes_again(course: Course, limit: float) -> int | None:
    """In how many of the steps after the failing one, on other batches, outputs passed this limit; None if in none."""
    return sum(size > limit for size in course.sizes[1:]) or None


def still_grows(course: Course, before: Course) -> tuple[float, float] | None:
    """From what to what outputs grew in the steps after the failing one; None if they did not, or hardly any more.

    `before` are the steps that led there. Growth that has come to a rest by itself needed the room, and no more.
    """
    sizes = course.sizes
    if len(sizes) < 2 or sizes[-1] < _GROWS * sizes[0]:
        return None
    led = before.sizes[: before.failed_at]
    usual, now = _pace(led[len(led) // 2 :]), _pace(sizes)
    if usual is not None and now is not None and now < _GOES_ON * usual:
        return None
    return sizes[0], sizes[-1]


def _pace(sizes: Sequence[float]) -> float | None:
    """By how much the logarithm grows in a step; None where there are too few steps to tell."""
    if len(sizes) < _FEW or min(sizes[0], sizes[-1]) <= 0:
        return None
    return math.log(sizes[-1] / sizes[0]) / (len(sizes) - 1)
