"""WatchedLoop: an ordinary training loop under guard. Its body is the user's own and knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.guarding.attempt import StepResult
from stayfinite.recover.aftermath import Aftermath
from stayfinite.recover.policy import Policy
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

    def update_then_look(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> StepResult: ...

    def saw_scaled_clip(self) -> None: ...


class WatchedLoop:
    """Listens while a loop body runs; afterwards undoes what the body did to a refused step's schedule and averages."""

    def __init__(self, guard: Guarding) -> None:
        self._guard = guard
        self.listening = False
        self._aftermath: Aftermath | None = None

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        with intercept(self, self._guard.state.optimizers, self._guard.state.scaler):
            for batch in batches:
                with ExitStack() as body:
                    self._enter(batch, body)
                    body.callback(self._leave)
                    yield batch

    def _enter(self, batch: Any, body: ExitStack) -> None:
        guard = self._guard
        if guard.window is None or not guard.window.losses:  # not in the middle of an accumulation
            guard.window = None
            guard.begin_step()
        guard.open_window().batches.append(batch)
        body.enter_context(guard.first_forward())
        self.listening = True

    def _leave(self) -> None:
        self.listening = False
        self._guard.recovery.scaling.settle_refusal()
        if self._aftermath is not None:
            self._aftermath.put_back()
            self._aftermath = None

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
        if not self.listening:
            return
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

        self._settle(optimizer, lambda: self._guard.update_then_look([optimizer], run))
        return value

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        """The body calls scaler.step(optimizer): it looks at the gradients once more, which the guard has done."""
        if not self.listening:
            return step()
        self._settle(optimizer, lambda: self._guard.update([optimizer], step, in_loop=True))
        return None

    def _settle(self, optimizer: Optimizer, update: Callable[[], StepResult]) -> None:
        with self.paused():
            outcome = update()
        if outcome.applied is False:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # no scheduler need warn of a skipped step
            hold = self._guard.policy.scheduler_on_skip == "hold"
            self._aftermath = Aftermath(self._guard.state, keep_scheduler=hold)
        self._guard.open_window()  # a second optimizer's step in the same body is a transaction of its own
