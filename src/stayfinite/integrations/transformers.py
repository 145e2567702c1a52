"""StayFiniteCallback for the Trainer of transformers, and for those made of it (TRL), with PEFT adapters or not."""

from __future__ import annotations

import math
import sys
from functools import partial
from types import FrameType
from typing import Any

from stayfinite.hooks import Listening, listen_to
from stayfinite.integrations.framework_guard import FrameworkGuard, check_options

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise ImportError(
        "stayfinite.integrations.transformers needs transformers, which is not installed here. "
        "Install it with: pip install 'stayfinite[transformers]'"
    ) from error


class StayFiniteCallback(TrainerCallback):  # type: ignore[misc]
    """`Trainer(..., callbacks=[StayFiniteCallback()])`: every update is looked at before it is made.

    Takes the options of `Guard` but for those that the Trainer decides: policy, run_dir, clip_norm, ema, listeners.
    A refused update leaves weights, optimizer and schedule as they were; the batch counts in `global_step`, so that
    a resumed training goes on with the right one. `guard` is the Guard of the training.
    """

    def __init__(self, **options: Any) -> None:
        check_options("StayFiniteCallback", options)
        self._options = options
        self._run: FrameworkGuard | None = None
        self._saves = Listening()
        self._trainer: Any = None
        self._loss_so_far = 0.0

    @property
    def guard(self) -> Any:
        """The Guard of the training that runs, or of the last one; None before the first."""
        return self._run.guard if self._run is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.close()  # an earlier training that ended with an error
        trainer = self._trainer = _trainer_with(self)
        self._loss_so_far = 0.0
        self._run = FrameworkGuard(
            lambda owner: owner is trainer,
            parts["model"],
            parts["optimizer"],
            parts["lr_scheduler"],
            trainer.accelerator.scaler,
            self._options,
        )
        self._run.guard.step_count = state.global_step
        self._saves = listen_to(trainer, "_save_checkpoint", self._save)

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        run = self._run
        if run is None:
            return
        try:
            run.end_step()
        except BaseException:
            self._tell(run)
            self.close()
            raise
        self._tell(run)

    def _tell(self, run: FrameworkGuard) -> None:
        """Skipped steps reach the Trainer's own loggers and its history, whatever its filter of NaN does."""
        for line in run.take_refused():
            self._log("stayfinite/skipped", float(run.guard.counters.skipped))
            entry = {"stayfinite/action": line["action"], "stayfinite/what": line["what"]}
            self._trainer.state.log_history[-1] |= entry

    def _log(self, name: str, value: float) -> None:
        control = self._trainer.control
        wanted = control.should_log
        self._trainer.log({name: value})
        control.should_log = wanted  # what the Trainer has to log at this step it still logs

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        """A loss that was logged as NaN or Inf leaves the Trainer's running sums: NaN minus NaN is not 0."""
        trainer = self._trainer
        if trainer is None or "loss" not in (logs or {}):
            return
        if math.isfinite(trainer._total_loss_scalar):
            self._loss_so_far = trainer._total_loss_scalar
        else:
            trainer._total_loss_scalar = self._loss_so_far
            trainer._tr_loss.zero_()

    def _save(self, original: Any, *args: Any, **kwargs: Any) -> None:
        assert self._run is not None
        what = f"checkpoint-{self._trainer.state.global_step}"
        if not self._run.gate(partial(original, *args, **kwargs), what):
            self._log("stayfinite/not_saved", 1.0)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. Done when a training ends; call it after one that ended with an error of its own."""
        self._saves.stop()
        if self._run is not None:
            self._run.close()
        self._trainer = None


def _trainer_with(callback: StayFiniteCallback) -> Any:
    """The Trainer that calls this callback now; the events themselves do not say."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and callback in found.callback_handler.callbacks:
            return found
        frame = frame.f_back
    raise RuntimeError("StayFiniteCallback was not called by a Trainer; pass it as Trainer(callbacks=[...])")
