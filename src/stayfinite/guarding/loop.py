"""WatchedLoop: an ordinary training loop under guard. Its body is the user's own and knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Refusal, StepResult
from stayfinite.guarding.locate import Replay
from stayfinite.recover.aftermath import Aftermath
from stayfinite.recover.policy import Policy, RunStopped
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.state import TrainingState
from stayfinite.watch.intercept import intercept
from stayfinite.watch.losses import Loss, as_loss
from stayfinite.watch.watcher import Watcher, Window

Batch = TypeVar("Batch")


class Guarding(Protocol):
    """The part of a Guard that a loop needs."""

    state: TrainingState
    policy: Policy
    recovery: Recovery
    watcher: Watcher
    window: Window | None

    def begin_step(self) -> None: ...

    def open_window(self) -> Window: ...

    def first_forward(self) -> Any: ...

    def update(
        self, optimizers: list[Optimizer], step: Callable[[], Any], *, in_loop: bool = ...
    ) -> StepResult: ...

    def update_then_look(
        self, optimizers: list[Optimizer], step: Callable[[], Any], *, in_loop: bool = ...
    ) -> StepResult: ...

    def saw_scaled_clip(self) -> None: ...

    def mend_buffers(self) -> bool: ...

    def wants_replay(self, refusal: Refusal) -> bool: ...

    def conclude(self, refusal: Refusal, evidence: FailedStep | None) -> None: ...


class WatchedLoop:
    """Listens while a loop body runs; afterwards undoes what the body did to a refused step's schedule and averages."""

    def __init__(self, guard: Guarding) -> None:
        self._guard = guard
        self.listening = False
        self._aftermath: Aftermath | None = None
        self._refusal: Refusal | None = None
        self._replay: Replay | None = None
        self._replays_update = False
        self._trained = False  # the body has run a backward pass or an update
        self._between = False  # listen between two bodies, too

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """A loop over these batches, listened to for as long as it runs."""
        with intercept(self, self._guard.state.optimizers, self._guard.state.scaler):
            yield from self.bodies(batches)

    def bodies(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same where somebody else has the loop's calls brought here."""
        for batch in batches:
            try:
                with ExitStack() as body:
                    self._enter(batch, body)
                    body.callback(self._leave)
                    yield batch
            except GeneratorExit:  # the loop was left after this body, often because of what was refused
                self._conclude_at_once()
                raise
            refusal, self._refusal = self._refusal, None
            if refusal is not None:
                evidence = None
                if self._guard.wants_replay(refusal):
                    evidence = yield from self._hand_out_again(refusal)
                self._guard.conclude(refusal, evidence)

    def _conclude_at_once(self) -> None:
        """A refusal whose batch cannot be handed out again. The loop is over, so nothing is left to be stopped."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            with suppress(RunStopped):
                self._guard.conclude(refusal, None)

    def listen_always(self) -> None:
        """Guard updates outside of any loop over batches, too: each is then a step of its own."""
        self._between = self.listening = True
        self._guard.begin_step()
        self._guard.open_window()

    def end_step(self) -> None:
        """Outside of a loop over batches: an update was made or refused, so what follows belongs to the next step."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._guard.conclude(refusal, None)
        else:
            self._guard.begin_step()

    def put_back_aftermath(self) -> None:
        """Take back what was done to schedule and averages since the last refusal."""
        if self._aftermath is not None:
            self._aftermath.put_back()
            self._aftermath = None

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    def refused(self, refusal: Refusal) -> None:
        """The guard refused the step of this body; it is looked into when the body has ended."""
        earlier, self._refusal = self._refusal, refusal
        if earlier is not None:  # several updates in one body: only the last can be replayed
            self._guard.conclude(earlier, None)

    def _hand_out_again(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """Give the body the same batches once more, followed op by op; nothing it does this time stays."""
        guard = self._guard
        aftermath = Aftermath(guard.state, keep_scheduler=True)
        guard.recovery.scaling.refused(overflow=False)
        self._replay = Replay(guard.recovery, refusal.attempt)
        self._replays_update = refusal.attempt.update_was_bad
        try:
            with self._replay.prepared():
                for batch in refusal.attempt.window.batches:
                    with self._replay.following(batch):
                        yield batch
                return self._replay.evidence()
        finally:
            self._replay = None
            guard.window = None
            guard.recovery.scaling.settle_refusal()
            aftermath.put_back()

    def _enter(self, batch: Any, body: ExitStack) -> None:
        guard = self._guard
        if guard.window is None or not guard.window.losses:  # not in the middle of an accumulation
            guard.window = None
            guard.begin_step()
        guard.open_window().batches.append(batch)
        body.enter_context(guard.first_forward())
        self.listening, self._trained = True, False

    def _leave(self) -> None:
        self.listening = self._between
        if not self._trained:
            self._guard.mend_buffers()
        self._guard.recovery.scaling.settle_refusal()
        self.put_back_aftermath()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the guard itself runs a step, there is nothing to listen to."""
        was, self.listening = self.listening, False
        try:
            yield
        finally:
            self.listening = was

    # -- what the body does

    def saw_backward(self, roots: Sequence[Tensor]) -> None:
        if self._replay is not None:
            self._replay.saw_loss(roots[0])
        if not self.listening:
            return
        self._trained = True
        total = (
            torch.stack([root.detach().sum().float() for root in roots]).sum()
            if len(roots) > 1
            else roots[0].detach()
        )
        scale = self._guard.recovery.scaling.scale(total.device)
        window = self._guard.open_window()
        window.losses.append(Loss(total.reshape(()) if scale is None else total.reshape(()) / scale, {}))
        window.reading = None

    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The last moment at which the gradients are raw; the norm measured here serves the clipping too."""
        window = self._guard.window
        if not self.listening or window is None:
            return None
        scaling = self._guard.recovery.scaling
        if scaling.on and not any(scaling.is_unscaled(o) for o in self._guard.state.optimizers):
            self._guard.saw_scaled_clip()
            return None
        self._guard.state.held_by(self._guard.state.optimizers)  # parameters added since have their names now
        reading = self._guard.watcher.read(list(self._guard.state.parameter_names))
        same = len(reading.gradients) == len(gradients) and all(
            mine is theirs for mine, theirs in zip(reading.gradients, gradients, strict=True)
        )
        if not same:
            return None  # the loop clips only a part; the gradients are read again at the step
        window.reading = reading
        return reading.total

    def wants_step(self, optimizer: Optimizer, step: Callable[[], Any], closure: Any) -> Any:
        """The body calls optimizer.step(): do it if the gradients are good."""
        if self._replay is not None:
            if self._replays_update:
                self._replay.try_update(step)
            return None
        if not self.listening:
            return step()
        if closure is None:
            self._settle(optimizer, lambda: self._guard.update([optimizer], step, in_loop=True))
            return None
        value: Any = None

        def run() -> None:
            nonlocal value
            value = step()
            if value is not None:
                self._guard.open_window().losses.append(as_loss(torch.as_tensor(value).detach()))

        self._settle(optimizer, lambda: self._guard.update_then_look([optimizer], run, in_loop=True))
        return value

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        """The body calls scaler.step(optimizer): it looks at the gradients once more, which the guard has done."""
        if self._replay is not None:
            self._guard.recovery.scaling.unscale([optimizer])
            return None
        if not self.listening:
            return step()
        self._settle(optimizer, lambda: self._guard.update([optimizer], step, in_loop=True))
        return None

    def _settle(self, optimizer: Optimizer, update: Callable[[], StepResult]) -> None:
        self._trained = True
        with self.paused():
            outcome = update()
        if outcome.applied is False:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # no scheduler need warn of a skipped step
            hold = self._guard.policy.scheduler_on_skip == "hold"
            self._aftermath = Aftermath(self._guard.state, keep_scheduler=hold)
        self._guard.open_window()  # a second optimizer's step in the same body is a transaction of its own
