"""Where a run is in its data, so that a resumed run goes on with the next batch, in the same order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from stayfinite.recover.rng import RngState

Batch = TypeVar("Batch")


class DataPosition:
    """Counts epochs and batches; remembers the random state an epoch began with, which fixes its order.

    A batch that was handed out and not trained on yet (`waiting`) is not counted: a run that is resumed from here
    fetches it again, from the random state before it was fetched.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self.waiting = False
        self._before_fetch: RngState | None = None
        self._loader: Any = None
        self._epoch_order: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches; after a restore, the rest of the interrupted epoch first."""
        resume, self._resume = self._resume, None
        self._loader = loader
        done = resume["batch"] if resume is not None else 0
        now = RngState.capture()
        if resume is not None and resume["epoch_order"] is not None:
            _set_order(resume["epoch_order"], loader)
        elif resume is not None:  # between two epochs; nothing but us restores the loader's own generators
            _set_generators(resume["generators"], loader)
        self._epoch_order = _get_order(loader)
        iterator = iter(loader)
        if resume is not None and resume["epoch_order"] is not None:
            for _ in itertools.islice(iterator, done):
                pass
            now.restore()
        self.batch = done
        while True:
            self._before_fetch = RngState.capture()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            self.batch, self.waiting = self.batch + 1, True
            yield batch
            self.waiting = False
        self.epoch += 1
        self.batch = 0
        self._epoch_order = None

    def rng(self) -> RngState:
        """The random state to go on from: now, or before the batch was fetched that waits to be trained on."""
        before = self._before_fetch if self.waiting else None
        return before or RngState.capture()

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batch": self.batch - int(self.waiting),
            "epoch_order": self._epoch_order,
            "generators": [generator.get_state() for generator in _generators(self._loader)],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        known = {key: saved[key] for key in ("epoch", "batch", "epoch_order", "generators")}
        self.epoch, self.batch, self.waiting = int(known["epoch"]), int(known["batch"]), False
        self._resume = known


def _get_order(loader: Any) -> dict[str, Any]:
    """What decides an epoch's order: the global generators, the loader's own ones, and a sampler's epoch number."""
    return {
        "global": RngState.capture().to_saved(),
        "own": [generator.get_state() for generator in _generators(loader)],
        "sampler_epoch": getattr(_sampler(loader), "epoch", None),
    }


def _set_order(saved: dict[str, Any], loader: Any) -> None:
    _set_generators(saved["own"], loader)
    RngState.from_saved(saved["global"]).restore()
    sampler = _sampler(loader)
    if saved["sampler_epoch"] is not None and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(saved["sampler_epoch"])


def _set_generators(states: list[torch.Tensor], loader: Any) -> None:
    for generator, state in zip(_generators(loader), states, strict=False):
        generator.set_state(state)


def _sampler(loader: Any) -> Any:
    """The sampler that chooses the samples: a batch sampler of the user's own holds it one level deeper."""
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return inner if inner is not None else getattr(loader, "sampler", None)


def _generators(loader: Any) -> list[torch.Generator]:
    """The loader's own random generators, each once."""
    owners = (loader, getattr(loader, "batch_sampler", None), _sampler(loader))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
