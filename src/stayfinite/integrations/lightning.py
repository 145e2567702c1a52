"""StayFiniteCallback for the Trainer of Lightning: automatic and manual optimization."""

from __future__ import annotations

from functools import partial
from typing import Any

from stayfinite.hooks import Listening, listen_to
from stayfinite.integrations.framework_guard import FrameworkGuard, check_options

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise ImportError(
        "stayfinite.integrations.lightning needs lightning, which is not installed here. "
        "Install it with: pip install 'stayfinite[lightning]'"
    ) from error


class StayFiniteCallback(Callback):  # type: ignore[misc]
    """`Trainer(..., callbacks=[StayFiniteCallback()])`: every update is looked at before it is made.

    Takes the options of `Guard` but for those that the Trainer decides: policy, run_dir, ema, listeners. A refused
    update leaves weights, optimizer, schedules that go by steps, and the means of what was logged as they were;
    `trainer.global_step` counts it. `guard` is the Guard of the training.
    """

    def __init__(self, **options: Any) -> None:
        check_options("StayFiniteCallback", options)
        self._options = options
        self._run: FrameworkGuard | None = None
        self._saves = Listening()
        self._means: _LoggedMeans | None = None

    @property
    def guard(self) -> Any:
        """The Guard of the training that runs, or of the last one; None before the first."""
        return self._run.guard if self._run is not None else None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._run = FrameworkGuard(
            lambda owner: _trainer_of(owner) is trainer,
            pl_module,
            trainer.optimizers,
            [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"],
            getattr(trainer.precision_plugin, "scaler", None),
            self._options,
        )
        self._run.guard.step_count = trainer.global_step
        self._saves = listen_to(trainer, "save_checkpoint", self._save)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._run is not None and not self._run.accumulating:
            self._means = _LoggedMeans(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        run = self._run
        if run is None or run.accumulating:
            return
        try:
            run.end_step()
        finally:
            refused = run.take_refused()
            if refused and self._means is not None:
                self._means.put_back()
            if refused:
                for logger in trainer.loggers:
                    logger.log_metrics(
                        {"stayfinite/skipped": float(run.guard.counters.skipped)}, step=trainer.global_step
                    )

    def _save(self, original: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        assert self._run is not None
        self._run.gate(partial(original, filepath, *args, **kwargs), str(filepath))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        self._saves.stop()
        if self._run is not None:
            self._run.close()


def _trainer_of(owner: Any) -> Any:
    """Of a closure of automatic optimization, or of the loop of manual optimization."""
    inside = getattr(owner, "_step_fn", None)
    loop = getattr(inside.func, "__self__", None) if isinstance(inside, partial) else owner
    return getattr(loop, "trainer", None)


class _LoggedMeans:
    """What `self.log` has gathered of this epoch, as it was before a step."""

    def __init__(self, trainer: Any) -> None:
        self._results = trainer._results or {}
        self._saved = {
            key: {
                name: getattr(result, name).clone()
                for name in ("value", "cumulated_batch_size")
                if hasattr(result, name)
            }
            for key, result in self._results.items()
            if not result.has_reset and result.is_tensor
        }

    def put_back(self) -> None:
        for key, result in self._results.items():
            if key in self._saved:
                for name, value in self._saved[key].items():
                    getattr(result, name).copy_(value)
                result._computed = None
            elif result.is_tensor:
                result.reset()
