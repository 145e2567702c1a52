"""BodyReplay: the body of a watched loop once more with its own update, in a child, where what it changes is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.loop_body import LoopBody
from stayfinite.guarding.trial_replay import TrialReplay, norm_is_finite
from stayfinite.prove.trial import TrialResult
from stayfinite.recover.recovery import Recovery
from stayfinite.watch.finite import all_finite
from stayfinite.watch.watcher import Call, Window


def calls_of(body: LoopBody, window: Window) -> list[Call]:
    """The body with each of a window's batches."""
    return [Call(body, (batch,), {}) for batch in window.batches]


class BodyReplay(TrialReplay):
    """The body makes forward pass, backward pass and update itself; this is asked before each update."""

    def __init__(
        self, recovery: Recovery, attempt: Attempt, body: LoopBody, texts: Mapping[str, str]
    ) -> None:
        super().__init__(recovery, attempt)
        self._body, self._receiver, self._texts = body, body.receiver, texts
        self._keeps_updates = self._counts = False
        self._bad = False
        self._applied = 0
        self._losses: list[tuple[int, float]] = []

    def with_update(self, healthy: Window | None) -> TrialResult:
        """Follow the body and its update; then run it with a healthy batch, with what came of it."""
        self._keeps_updates = True
        steps = 0
        with self._receiver.receiving(self), self.prepared():
            self._run(self._attempt.window.batches, self.following)
            found = self.evidence()
            if found is None and self._bad:
                found = FailedStep(0, "state", "gradient")
            failures = [found] if found is not None else []
            losses, applied, moved = list(self._losses), self._applied, list(self._moved)
            if not failures and healthy is not None:
                steps = 1
                self._run(healthy.batches)
                failures = [FailedStep(1, "state", "loss")] if self._bad else []
        return TrialResult(failures=failures, losses=losses, steps=steps, applied=applied, moved=moved)

    def make(
        self, batches: Sequence[Any], around: Callable[[Any], AbstractContextManager[Any]], after: int
    ) -> None:
        """Run the body with many batches, each with its update, and keep what comes of it."""
        self._keeps_updates = self._counts = True
        self._clear()
        with self._receiver.receiving(self):
            self._body(batches, self._texts, around, after=after)

    def outcome(self) -> tuple[float, bool, int]:
        """The mean loss since the last call, whether anything was bad, and how many updates were made."""
        losses = [loss for _, loss in self._losses]
        found = sum(losses) / len(losses) if losses else float("nan"), self._bad, self._applied
        self._losses, self._bad, self._applied = [], False, 0
        return found

    def _is_bad(self, calls: Sequence[Call]) -> bool:
        self._clear()
        self._bad = False
        with self._receiver.receiving(self):
            self._run([call.args[0] for call in calls])
        return self._bad

    def _run(
        self, batches: Sequence[Any], around: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        self._body(batches, self._texts, around)

    # -- what the body does

    def saw_loss(self, loss: Tensor) -> None:
        super().saw_loss(loss)
        with self.only_looking():
            value = float(loss.detach().float().sum())
            self._losses.append((0, value))
            self._bad = self._bad or not bool(torch.isfinite(loss.detach()).all())

    def wants_update(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """The body calls optimizer.step(): the update is made if there is nothing bad."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with self.only_looking():
            self._bad = self._bad or not norm_is_finite([p.grad for p in parameters if p.grad is not None])
        if self._bad:
            return value
        with nullcontext() if self._keeps_updates else self._taken_back():
            with self._measured(parameters):
                step(*([lambda: value] if closure is not None else []))
            self._applied += 1
            if self._counts and self._applied == 1:
                self._recovery.ladder.counters.applied += 1  # which the body may read
            with self.only_looking():
                self._bad = not all_finite(parameters)
            if self._bad:
                self._bad_update = self._tracer.failure()
        return value
