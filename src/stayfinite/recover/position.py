"""Where a run is in its data, so that a resumed run goes on with the next batch, in the same order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from stayfinite.recover.rng import RngState

Batch = TypeVar("Batch")


class DataPosition:
    """Counts epochs and batches; remembers the random state an epoch began with, which fixes its order."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self._epoch_rng: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches; after a restore, the rest of the interrupted epoch first."""
        resume, self._resume = self._resume, None
        now = RngState.capture()
        if resume is not None and resume["epoch_rng"] is not None:
            _set_rng(resume["epoch_rng"], loader)
        self._epoch_rng = _get_rng(loader)
        iterator = iter(loader)
        if resume is not None:
            for _ in itertools.islice(iterator, resume["batch"]):
                pass
            now.restore()
        self.batch = resume["batch"] if resume is not None else 0
        for batch in iterator:
            self.batch += 1
            yield batch
        self.epoch += 1
        self.batch = 0
        self._epoch_rng = None

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch, "epoch_rng": self._epoch_rng}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.epoch, self.batch = saved["epoch"], saved["batch"]
        self._resume = saved if saved["batch"] else None


def _get_rng(loader: Any) -> dict[str, Any]:
    """The generators that decide an epoch's order: the global ones, and the loader's own if it has one."""
    own = getattr(loader, "generator", None)
    return {"global": RngState.capture().to_saved(), "loader": own.get_state() if own is not None else None}


def _set_rng(saved: dict[str, Any], loader: Any) -> None:
    RngState.from_saved(saved["global"]).restore()
    own = getattr(loader, "generator", None)
    if own is not None and saved["loader"] is not None:
        own.set_state(saved["loader"])
