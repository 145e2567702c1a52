"""Weights & Biases: the run that the script has begun, or one of its own; works offline (WANDB_MODE=offline)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stayfinite.loggers.logger import PREFIX, Logger


class WandbLogger(Logger):
    """The guard's step is `stayfinite/step`: the script's own counting of wandb steps is left alone."""

    def __init__(self, run: Any = None, **init: Any) -> None:
        """`run`: what wandb.init gave; without it the current run, or a new one made with `init`."""
        self._run, self._init, self._own = run, init, False

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        self._open().log({**values, f"{PREFIX}step": step})

    def happened(self, step: int, kind: str, text: str) -> None:
        self._open().log({f"{PREFIX}{kind}": 1.0, f"{PREFIX}{kind}_text": text, f"{PREFIX}step": step})

    def close(self) -> None:
        if self._own and self._run is not None:
            self._run.finish()
            self._run = None

    def _open(self) -> Any:
        if self._run is None:
            import wandb  # type: ignore[import-not-found]

            self._own = wandb.run is None
            self._run = wandb.init(**self._init) if self._own else wandb.run
            self._run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        return self._run
