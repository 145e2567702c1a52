"""Observes learning-rate schedulers: when they begin, how often they step, which rates they set."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from stayfinite.findings.subjects.run_record import LoadEvent, Place, SchedulerFacts
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.optimizers import ObservedOptimizer, OptimizerObserver
from stayfinite.observers.ownership import Hear
from stayfinite.recover.wrapped import optimizer_of
from stayfinite.replay.sites import called_by_us
from stayfinite.watch.optimizer_facts import rate_of

_SHOWN = 64
_LONG_ENOUGH = 8
_GONE = 1e-5  # of the peak: such a rate changes nothing any more
_RESTARTS = ("CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR")


@dataclass(slots=True)
class ObservedScheduler:
    """One scheduler over its life."""

    scheduler: weakref.ref[Any]
    kind: str
    start_epoch: int
    total_steps: int | None
    created: Place
    optimizer: ObservedOptimizer
    updates_before: int  # steps that the optimizer had made when this was
    peak: float
    gone: int = 0
    stepped: Place = field(default_factory=Place)
    lrs: list[float] = field(default_factory=list)
    steps: int = 0
    base: float | None = None  # the rate it was given


class SchedulerObserver:
    """All schedulers of a run."""

    def __init__(
        self, history: RunHistory, optimizers: OptimizerObserver, on_step: Callable[[], None]
    ) -> None:
        self._history, self._optimizers, self._on_step = history, optimizers, on_step
        self.known: list[ObservedScheduler] = []
        self.loads: list[LoadEvent] = []
        self.on_load: Callable[[Any, Place], None] | None = None
        self.on_stepped: Callable[[Any, bool], None] | None = None  # and whether it steps with every update
        self._inside = 0

    def install(self, hear: Hear) -> None:
        for event, around in (
            ("scheduler_made", self._created),
            ("schedule", self._stepping),
            ("scheduler_load", self._loading),
        ):
            hear(event, around)

    def find(self, scheduler: Any) -> ObservedScheduler | None:
        return next((seen for seen in self.known if seen.scheduler() is scheduler), None)

    def _created(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        optimizer = args[0] if args else kwargs.get("optimizer")
        before = _rate_now(optimizer)
        self._inside += 1  # a constructor steps once, and calls the constructors of its bases
        try:
            original(scheduler, *args, **kwargs)
        finally:
            self._inside -= 1
        if not self._inside and hasattr(scheduler, "optimizer") and self.find(scheduler) is None:
            self._note_rate(scheduler, "made", before, here())
            self.adopt(scheduler, here())

    def adopt(self, scheduler: Any, made: Place) -> None:
        """A scheduler was made, or somebody brought one that had been."""
        optimizer = optimizer_of(scheduler)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return
        driven = self._optimizers.find(optimizer)
        total = getattr(scheduler, "total_steps", None) or getattr(scheduler, "T_max", None)
        self.known.append(
            ObservedScheduler(
                weakref.ref(scheduler),
                type(scheduler).__name__,
                max(0, int(getattr(scheduler, "last_epoch", 0) or 0)),
                int(total) if isinstance(total, (int, float)) else None,
                made,
                driven,
                driven.steps,
                _largest_rate(optimizer),
                base=next(iter(getattr(scheduler, "base_lrs", ())), None),
            )
        )

    def _stepping(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        before = _rate_now(getattr(scheduler, "optimizer", None))
        self._inside += 1  # a chained scheduler steps its parts
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            self._inside -= 1
        seen = self.find(scheduler)
        if self._inside or seen is None:
            return result
        seen.steps += 1
        seen.stepped = here()
        self._note_rate(scheduler, "stepped", before, seen.stepped)
        largest = _largest_rate(scheduler.optimizer)
        seen.peak = max(seen.peak, largest)
        seen.gone += int(largest < _GONE * seen.peak)
        rate = scheduler.optimizer.param_groups[0].get("lr")
        if isinstance(rate, (int, float, torch.Tensor)):
            seen.lrs.append(float(rate))
        self._on_step()
        if self.on_stepped is not None:
            updates = seen.optimizer.steps - seen.updates_before  # that were applied
            self.on_stepped(scheduler, seen.steps * 4 >= updates * 3)  # an epoch may have two updates
        return result

    def _note_rate(self, scheduler: Any, how: str, before: float | None, place: Place) -> None:
        optimizer = optimizer_of(scheduler)
        self._optimizers.resumed_rates.scheduled(
            optimizer, type(scheduler).__name__, how, before, _rate_now(optimizer), place
        )

    def _loading(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        bases = list(getattr(scheduler, "base_lrs", []))
        result = original(scheduler, *args, **kwargs)
        after = list(getattr(scheduler, "base_lrs", []))
        if self._inside or called_by_us():
            return result
        self._optimizers.resumed_rates.scheduler_loaded(optimizer_of(scheduler))
        place = here()
        if self.on_load is not None:
            self.on_load(scheduler, place)
        self.loads.append(
            LoadEvent(
                kind="scheduler",
                place=place,
                step=self._history.step,
                base_before=float(bases[0]) if bases else None,
                base_after=float(after[0]) if after else None,
            )
        )
        return result

    def facts(self) -> tuple[SchedulerFacts, ...]:
        return tuple(
            SchedulerFacts(
                kind=w.kind,
                start_epoch=w.start_epoch,
                steps=w.steps,
                lrs=_thinned(w.lrs),
                rising=len(w.lrs) >= _LONG_ENOUGH and all(a < b for a, b in pairwise(w.lrs)),
                rose_after_fall=_rose_after_fall(w),
                total_steps=w.total_steps,
                created=w.created,
                stepped=w.stepped,
                updates=w.optimizer.steps - w.updates_before,
                peak=w.peak,
                gone=w.gone,
                base=w.base,
            )
            for w in self.known
        )


def _rate_now(optimizer: Any) -> float | None:
    return rate_of(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else None


def _largest_rate(optimizer: torch.optim.Optimizer) -> float:
    return max((float(group.get("lr", 0.0)) for group in optimizer.param_groups), default=0.0)


def _rose_after_fall(seen: ObservedScheduler) -> bool:
    """The rate reached its lowest point and then rose until the end, in a schedule that does not restart."""
    rates = seen.lrs
    if seen.kind in _RESTARTS or len(rates) < _LONG_ENOUGH:
        return False
    lowest = rates.index(min(rates))
    tail = rates[lowest:]
    fell = lowest > 0 and rates[0] > min(rates)
    if len(tail) < _LONG_ENOUGH or not (fell or seen.start_epoch > 0):
        return False
    return tail[-1] > 1.05 * tail[0] and all(b >= a for a, b in pairwise(tail))


def _thinned(rates: list[float]) -> tuple[float, ...]:
    if len(rates) <= _SHOWN:
        return tuple(rates)
    every = (len(rates) - 1) / (_SHOWN - 1)
    return tuple(rates[round(i * every)] for i in range(_SHOWN))
