"""RunHistory: the step number and the steps of a run. A guard writes here; without one, the updates themselves do."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from stayfinite.findings.subjects.run_record import Place, StepRecord
from stayfinite.replay.sites import place_at, user_site

_RECENT, _FIRST, _WHOLE = 64, 16, 1024


def here() -> Place:
    """The line of the user's code that runs now."""
    return place_at(user_site(2))


@dataclass(slots=True)
class RunningStep:
    """What is known of the step that runs now, where somebody has looked at it already."""

    losses: list[float] = field(default_factory=list)
    input_absmax: float | None = None

    @property
    def loss(self) -> float | None:
        return sum(self.losses) / len(self.losses) if self.losses else None


class RunHistory:
    """One number a step, for all who speak of it: live lines, record, incidents and the final report."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.step = 0
        self.updates = 0  # steps that were applied
        self.guarded = False  # a guard decides what is a step
        self.recent: deque[StepRecord] = deque(maxlen=_RECENT)
        self.first_steps: list[StepRecord] = []
        self.whole: deque[StepRecord] = deque(maxlen=_WHOLE)  # for the look at a finished run
        self.running = RunningStep()
        self.listeners: list[Callable[[StepRecord], None]] = []

    def add(self, record: StepRecord, *, last_update: float | None = None) -> None:
        """A step is over. How far the update before it went is known only now."""
        self.note_update(last_update)
        self.recent.append(record)
        self.whole.append(record)
        if len(self.first_steps) < _FIRST:
            self.first_steps.append(record)
        self.updates += int(record.applied)
        self.running = RunningStep()
        self.step += 1
        for listener in self.listeners:
            listener(record)

    def note_update(self, ratio: float | None) -> None:
        """How far the last update went, unless it was taken back."""
        if ratio is not None and self.recent and self.recent[-1].applied:
            self.recent[-1] = self.whole[-1] = replace(self.recent[-1], update_ratio=ratio)
            if len(self.first_steps) == len(self.whole):
                self.first_steps[-1] = self.recent[-1]

    def until(self, step: int | None) -> tuple[StepRecord, ...]:
        """The recent steps; those up to a step that failed, as they were then."""
        records = self.whole if step is not None else self.recent
        return tuple(record for record in records if step is None or record.step <= step)[-_RECENT:]

    def as_known_now(self, records: Iterable[StepRecord]) -> tuple[StepRecord, ...]:
        """Records that somebody kept, with what has become known of their updates since."""
        known = {record.step: record.update_ratio for record in self.whole}
        return tuple(replace(r, update_ratio=known.get(r.step, r.update_ratio)) for r in records)

    def so_far(self) -> tuple[StepRecord, ...]:
        """The recent steps with the running one as their last."""
        loss = self.running.loss
        if loss is None:
            return tuple(self.recent)
        last = self.recent[-1] if self.recent else StepRecord(self.step)
        running = StepRecord(
            self.step, loss, lr=last.lr, scale=last.scale, input_absmax=self.running.input_absmax
        )
        return (*self.recent, running)[-_RECENT:]
