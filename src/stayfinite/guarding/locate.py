"""From a refused step to the line where it went wrong: by following it once more, or the next one that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.guarding.attempt import Attempt
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.rng import RngState
from stayfinite.replay import Tracer
from stayfinite.watch.losses import as_loss, split_aux


class LateBinding(Exception):
    """A step function that would compute something else if it were called again."""


class Trace:
    """One step, followed op by op while it runs."""

    def __init__(self) -> None:
        self._tracer = Tracer()
        self._bad_loss: FailedStep | None = None
        self._bad_update: FailedStep | None = None

    def start(self, batch: Any) -> None:
        self._tracer.start()
        self._tracer.note_batch(batch)

    def stop(self) -> None:
        self._tracer.stop()

    @contextmanager
    def following(self, batch: Any) -> Iterator[None]:
        """Follow what is done with one batch."""
        try:
            self.start(batch)
            yield
        finally:
            self.stop()

    @contextmanager
    def only_looking(self) -> Iterator[None]:
        """What the guard itself computes is no part of the step."""
        with self._tracer.only_looking():
            yield

    def followed(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The user's own update, called by the guard in the middle of its looking."""

        def run(*given: Any) -> Any:
            with self._tracer.following_again():
                return step(*given)

        return run

    def saw_loss(self, loss: Tensor) -> None:
        """The first loss that is not finite is what went wrong, if there is one."""
        with self._tracer.only_looking():
            finite = bool(torch.isfinite(loss.detach()).all())
        if not finite and self._bad_loss is None:
            self._bad_loss = self._tracer.failure(loss, "loss")

    def failure_of(self, failure: Failure) -> FailedStep | None:
        """What was seen of a step that raised."""
        return self._tracer.failure_of(failure)

    def evidence(self) -> FailedStep | None:
        """What was seen; None if nothing was bad."""
        return self._bad_loss or self._bad_update or self._tracer.failure()


class Replay(Trace):
    """One refused step, followed once more. Whatever it changes is put back when it ends."""

    def __init__(self, recovery: Recovery, attempt: Attempt) -> None:
        super().__init__()
        self._recovery, self._attempt, self._optimizers = recovery, attempt, attempt.group
        self._passes = 0
        self._other_failed = False

    def saw_loss(self, loss: Tensor) -> None:
        """Updates of the same body that were applied before the refused one have changed the weights: a loss that they
        answered may fail with the new ones, and that is not what went wrong."""
        self._passes += 1
        if self._passes <= self._attempt.passes_before and not bool(torch.isfinite(loss.detach()).all()):
            self._other_failed = True
        super().saw_loss(loss)

    def evidence(self) -> FailedStep | None:
        return None if self._other_failed else super().evidence()

    def of_functions(self) -> FailedStep | None:
        """Call the functions that made the losses again; None if nothing fails this time."""
        calls = self._attempt.window.calls
        changed = [name for call in calls for name in call.changed_names()] if len(calls) > 1 else []
        if changed:
            raise LateBinding(
                f"late binding: the step function reads {changed[0]!r} from its surroundings, which has changed since; "
                f"called again it would compute another batch. Pass it as an argument: guard.step(fn, {changed[0]})"
            )
        with self.prepared():
            for call, batch in zip(calls, self._attempt.window.batches, strict=True):
                with self.following(batch):
                    loss = as_loss(split_aux(call())[0]).total
                    self._recovery.scaling.scaled(loss / len(calls)).backward()  # type: ignore[no-untyped-call]
                    self.saw_loss(loss)
                    if self._attempt.update_was_bad and call is calls[-1]:
                        self.try_update(self._attempt.make_update)
            found = self.evidence()
        if found is None and len(calls) > 1 and not all(call.args for call in calls):
            raise LateBinding(
                "called again, the step function computed other losses. Perhaps it is late binding: what it reads from "
                "its surroundings has changed since. Pass the batch as an argument: guard.step(fn, batch)"
            )
        return found

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The state as it was before the step, and once more so afterwards; random numbers as the policy left them."""
        rng = RngState.capture()
        self._recovery.transaction.undo(restore_rng=True)
        self._clear()
        try:
            yield
        finally:
            self.stop()
            self._clear()
            self._recovery.transaction.undo(restore_rng=False)
            rng.restore()

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def try_update(self, step: Callable[[], Any]) -> None:
        """Follow an update that was bad in itself, and take it back."""
        with self._taken_back():
            step()
            self._bad_update = self._tracer.failure()

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Around an update that the next question must not find."""
        with self.only_looking():
            self._recovery.transaction.copy_before_update(self._optimizers)
        try:
            yield
        finally:
            with self.only_looking():
                self._recovery.transaction.undo_update(self._optimizers)
