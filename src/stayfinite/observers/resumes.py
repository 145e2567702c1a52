"""Observes resumes: what a save and a load of one run left out, and what the loss was before and after.

A checkpoint is known again by what is in it, so it may be renamed or copied between torch.save and torch.load.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import Place, Resume
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.optimizers import OptimizerObserver
from stayfinite.observers.ownership import Hear
from stayfinite.observers.replica_optimizers import Signature, signature_of
from stayfinite.recover.wrapped import optimizer_of
from stayfinite.replay.measure import is_plain
from stayfinite.replay.tracer import unfollowed
from stayfinite.watch.optimizer_facts import rate_of

_SAVES_KEPT, _RESUMES_KEPT, _KNOWN = 16, 16, 16
_BEFORE, _AFTER = 32, 10  # losses kept
_DEEP, _LOOKED_AT = 4, 2000  # of a checkpoint, to know it again: levels and entries,
_TENSORS, _VALUES, _NUMBERS = 8, 1024, 8  # the beginnings of some tensors, and some plain numbers

Contents = tuple[tuple[str, ...], tuple[float, ...]]


@dataclass(slots=True)
class _Trained:
    """An optimizer at the time of a save."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    signature: Signature
    rate: float | None
    losses: tuple[float, ...]
    went_on: list[float] = field(default_factory=list)  # what came after the save, without a load


@dataclass(slots=True)
class _Losses:
    """The last losses of an optimizer, with what is needed to know its weights again when it is gone."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    signature: Signature
    memory: frozenset[int]  # where some of its weights are: a state_dict() that was kept is the same memory
    rate: float | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_BEFORE))

    def at_a_save(self) -> _Trained:
        return _Trained(self.optimizer, self.signature, self.rate, tuple(self.losses))


@dataclass(slots=True)
class _Saved:
    contents: Contents
    place: Place
    has_optimizer: bool
    trained: list[_Trained]


@dataclass(slots=True)
class _Loading:
    """What was loaded since training last went on."""

    saved: _Saved | None = None
    place: Place = field(default_factory=Place)
    module: bool = False
    optimizers: set[int] = field(default_factory=set)
    schedulers: dict[int, tuple[int, Place]] = field(default_factory=dict)  # by optimizer: epoch, line
    resumed: set[int] = field(default_factory=set)  # optimizers that stepped since


class ResumeObserver:
    """Optimizers that began with weights from a checkpoint."""

    def __init__(self, history: RunHistory, optimizers: OptimizerObserver) -> None:
        self._history = history
        optimizers.listeners.append(self)
        self._losses: dict[int, _Losses] = {}
        self._saves: deque[_Saved] = deque(maxlen=_SAVES_KEPT)
        self._loading = _Loading()
        self._resumes: deque[tuple[weakref.ref[torch.optim.Optimizer], Resume, list[float], list[float]]] = (
            deque(maxlen=_RESUMES_KEPT)
        )

    def install(self, hear: Hear) -> None:
        hear("file_save", self._saving)
        hear("file_load", self._loading_file)

    # -- saving and loading ------------------------------------------------------------------------------

    def _saving(self, original: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(obj, *args, **kwargs)
        with unfollowed():
            contents = _contents(obj)
        if contents is not None:
            trained = [known.at_a_save() for known in self._losses.values() if known.optimizer() is not None]
            self._saves.append(_Saved(contents, here(), _has_optimizer(obj), trained))
        return result

    def _loading_file(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with unfollowed():
            contents = _contents(result)
        saved = next((s for s in reversed(self._saves) if s.contents == contents), None)
        if saved is not None or not self._loading.module or self._loading.resumed:
            self._loading = _Loading(saved, here())
        return result

    def module_loaded(self, state: Mapping[str, Any]) -> None:
        """Weights were loaded: from a file, or from a state_dict() of this run that was kept in memory."""
        loading = self._current()
        loading.module = True
        if loading.saved is not None:
            return
        kept = {t.data_ptr() for t in state.values() if isinstance(t, torch.Tensor) and is_plain(t)}
        trained = [known.at_a_save() for known in self._losses.values() if known.memory & kept]
        if trained:
            loading.saved = _Saved(((), ()), here(), has_optimizer=True, trained=trained)

    def optimizer_loaded(self, optimizer: torch.optim.Optimizer) -> None:
        self._current().optimizers.add(id(optimizer))

    def scheduler_loaded(self, scheduler: Any, place: Place) -> None:
        epoch = getattr(scheduler, "last_epoch", None)
        if isinstance(epoch, int):
            self._current().schedulers[id(optimizer_of(scheduler))] = (epoch, place)

    def _current(self) -> _Loading:
        if self._loading.resumed:
            self._loading = _Loading()
        return self._loading

    # -- steps -------------------------------------------------------------------------------------------

    def before_update(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """It steps now; the first step of an optimizer after weights were loaded is a resume."""
        loading = self._loading
        if not loading.module or id(optimizer) in loading.resumed:
            return
        loading.resumed.add(id(optimizer))
        if steps:
            return  # a script that goes back to an earlier state of the same run
        signature = signature_of(optimizer)
        trained = [t for t in loading.saved.trained if t.signature == signature] if loading.saved else []
        same = trained[0] if len(trained) == 1 else None
        epoch, scheduler = loading.schedulers.get(id(optimizer), (None, Place()))
        saved = loading.saved
        saved_at = saved.place if saved is not None else Place()
        resume = Resume(
            optimizer=type(optimizer).__name__,
            step=self._history.step,
            saved=saved_at,
            loaded=next((place for place in (loading.place, scheduler) if place.line), saved_at),
            saved_optimizer=saved is not None and saved.has_optimizer,
            optimizer_loaded=id(optimizer) in loading.optimizers,
            has_moments=bool(optimizer.state),
            adaptive=any("betas" in group for group in optimizer.param_groups),
            scheduler_epoch=epoch,
            rate_saved=same.rate if same is not None else None,
            rate_used=rate_of(optimizer),
            before=same.losses if same is not None else (),
        )
        went_on = same.went_on if same is not None else []
        self._resumes.append((weakref.ref(optimizer), resume, went_on, []))

    def after_update(self, optimizer: torch.optim.Optimizer, loss: float | None) -> None:
        if loss is None:
            return
        known = self._losses.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = _Losses(weakref.ref(optimizer), signature_of(optimizer), _memory_of(optimizer))
            self._losses.pop(id(optimizer), None)
            self._losses = dict(islice(self._losses.items(), max(0, len(self._losses) - _KNOWN), None))
            self._losses[id(optimizer)] = known
        known.rate = rate_of(optimizer)
        known.losses.append(loss)
        for saved in self._saves:
            for trained in saved.trained:
                if len(trained.went_on) < _AFTER and trained.optimizer() is optimizer:
                    trained.went_on.append(loss)
        for reference, _, _, after in self._resumes:
            if len(after) < _AFTER and reference() is optimizer:
                after.append(loss)

    def facts(self) -> tuple[Resume, ...]:
        return tuple(resume.with_losses(went_on, after) for _, resume, went_on, after in self._resumes)


def _memory_of(optimizer: torch.optim.Optimizer) -> frozenset[int]:
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return frozenset(weight.data_ptr() for weight in islice(weights, _TENSORS) if is_plain(weight))


def _contents(obj: Any) -> Contents | None:
    """Names and some numbers by which a checkpoint is known again; None for what is no state."""
    if not isinstance(obj, Mapping):
        return None
    leaves = list(islice(_walk(obj, _DEEP), _LOOKED_AT))
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and is_plain(t) and not t.is_complex()]
    if not tensors:
        return None
    numbers = [float(n) for n in leaves if isinstance(n, (int, float)) and abs(n) < 1e300]
    sums = [float(t.detach().reshape(-1)[:_VALUES].double().sum()) for t in tensors[:_TENSORS]]
    return tuple(sorted(map(str, obj))), (float(len(tensors)), *sums, *numbers[:_NUMBERS])


def _walk(obj: Any, deep: int) -> Iterator[Any]:
    inner = obj.values() if isinstance(obj, Mapping) else obj if isinstance(obj, (list, tuple)) else None
    if inner is None or not deep:
        yield obj
        return
    for one in inner:
        yield from _walk(one, deep - 1)


def _has_optimizer(obj: Any, deep: int = _DEEP) -> bool:
    if not isinstance(obj, Mapping) or not deep:
        return False
    return "param_groups" in obj or any(_has_optimizer(one, deep - 1) for one in obj.values())
