"""RunHistory: the clock and the history of a run; every observer writes here, nothing here watches by itself."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, replace

from stayfinite.findings.subjects.run_record import Place, StepRecord
from stayfinite.replay.sites import user_site

HISTORY_KEPT, FIRST_KEPT, RUN_KEPT = 64, 16, 1024


def here() -> Place:
    """The line of the user's code that runs now."""
    site = user_site(2)
    return Place(site.file, site.line, site.source) if site is not None else Place()


@dataclass(slots=True)
class RunningStep:
    """What is known of the step that runs now."""

    losses: list[float]
    grad_norm: float | None = None
    input_absmax: float | None = None


class RunHistory:
    """Steps are counted by optimizer steps (or refused ones); without an optimizer, by backward passes."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.step = 0
        self.optimizer_steps = 0
        self.backwards = 0
        self.history: deque[StepRecord] = deque(maxlen=HISTORY_KEPT)
        self.first_steps: list[StepRecord] = []
        self.whole: deque[StepRecord] = deque(maxlen=RUN_KEPT)  # for the look at a finished run
        self.current = RunningStep([])
        self.last_healthy_step = -1  # the last step with a finite loss (or none) and finite gradients
        self.scale: float | None = None

    def loss(self, value: float) -> None:
        self.current.losses.append(value)

    def close_step(self, lr: float | None, grad_norm: float | None, *, applied: bool) -> None:
        """The step is over: remember it and begin the next."""
        losses = self.current.losses
        loss = sum(losses) / len(losses) if losses else None
        record = StepRecord(
            step=self.step,
            loss=loss,
            grad_norm=self.current.grad_norm if self.current.grad_norm is not None else grad_norm,
            lr=lr,
            scale=self.scale,
            input_absmax=self.current.input_absmax,
            applied=applied,
        )
        self.history.append(record)
        self.whole.append(record)
        if len(self.first_steps) < FIRST_KEPT:
            self.first_steps.append(record)
        numbers = [n for n in (loss, record.grad_norm) if n is not None]
        if applied and all(math.isfinite(n) for n in numbers):
            self.last_healthy_step = self.step
        self.current = RunningStep([])
        self.step += 1

    def begin_again(self) -> None:
        """What was noted since the last step was a repetition."""
        self.current = RunningStep([])

    def so_far(self) -> tuple[StepRecord, ...]:
        """The history with the running step as its last entry."""
        losses = self.current.losses
        if not losses and self.current.grad_norm is None:
            return tuple(self.history)
        last = self.history[-1] if self.history else StepRecord(self.step)
        running = StepRecord(
            step=self.step,
            loss=sum(losses) / len(losses) if losses else None,
            grad_norm=self.current.grad_norm,
            input_absmax=self.current.input_absmax,
        )
        return (*self.history, replace(running, lr=last.lr, scale=self.scale))[-HISTORY_KEPT:]
