"""FrameworkGuard: a guard whose steps a framework runs; what the framework does is brought to it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from stayfinite.guard import Guard
from stayfinite.guarding.framework_steps import around_framework_step
from stayfinite.hooks import FRAMEWORK_STEPS, imported, listen
from stayfinite.watch.intercept import intercept

_GIVEN = ("model", "optimizer", "scheduler", "scaler", "accumulate", "sync", "scheduler_interval", "prove")
"""What the framework decides; a remedy is proved by `guard.step` and by `stayfinite run` only."""


def check_options(callback: str, options: Mapping[str, Any]) -> None:
    """Raise TypeError with one sentence for an option that a guard does not take, or that is the framework's."""
    known = [name for name in inspect.signature(Guard.__init__).parameters if name not in ("self", *_GIVEN)]
    for name in options:
        if name in _GIVEN:
            raise TypeError(f"{callback}({name}=...): the framework decides that; leave it out")
        if name not in known:
            raise TypeError(
                f"{callback}({name}=...): there is no such option; choose from {', '.join(known)}"
            )


class FrameworkGuard:
    """Listens from its making until `close`. The framework says when a step is over."""

    def __init__(
        self,
        owns: Callable[[Any], bool],
        model: Any,
        optimizers: Any,
        scheduler: Any,
        scaler: Any,
        options: Mapping[str, Any],
    ) -> None:
        """`owns`: whether an object that runs a framework's step belongs to this training."""
        self._owns, self._closed = owns, False
        self._refused: list[dict[str, Any]] = []
        listeners = [*options.get("listeners", ()), self._record]
        self.guard = Guard(
            model,
            optimizers,
            scheduler=scheduler,
            scaler=scaler,
            scheduler_interval="epoch",
            prove="off",
            **{**options, "listeners": listeners},
        )
        state = self.guard.state
        self._listening = ExitStack()
        self._listening.enter_context(intercept(self.guard.loop, state.optimizers, state.scaler))
        for event in FRAMEWORK_STEPS:
            if imported(event):
                self._listening.enter_context(listen(event, self._step))
        self.guard.loop.listen_always()

    def _step(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._owns(owner):
            return original(owner, *args, **kwargs)
        return around_framework_step(self.guard.loop, original, owner, *args, **kwargs)

    def _record(self, line: dict[str, Any]) -> None:
        if line.get("what") and "event" not in line:
            self._refused.append(line)

    @property
    def accumulating(self) -> bool:
        """Some micro-batches of the next update are there."""
        return self.guard.loop.accumulating

    def end_step(self) -> None:
        """An update was made or refused: everything is as it will stay; a failure is located and answered.

        Raises RunStopped where the policy ends the run.
        """
        loop = self.guard.loop
        loop.decision.finish()
        loop.decision.end_body()
        loop.end_step()

    def take_refused(self) -> list[dict[str, Any]]:
        """The records of the steps that were refused since this was last asked."""
        refused, self._refused = self._refused, []
        return refused

    def gate(self, save: Callable[[], Any], what: str) -> bool:
        """Have the framework write a checkpoint, unless it would hold NaN or Inf. Whether it was written."""
        obstacle = self.guard.obstacle_to_saving()
        if obstacle is None:
            save()
            return True
        warnings.warn(f"{what} was not written: {obstacle}", RuntimeWarning, stacklevel=3)
        return False

    def close(self) -> None:
        """The training is over. Doing it again does nothing."""
        if not self._closed:
            self._closed = True
            self._listening.close()
            self.guard.close()
