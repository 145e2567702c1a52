"""Observes optimizers: where they are made, loaded and stepped, and what a step changes in half-precision weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from stayfinite.findings import as_float
from stayfinite.findings.subjects.run_record import LoadEvent, OptimizerFacts, Place, StepRecord, UpdateAudit
from stayfinite.hooks import Listening, listen_to_updates
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.lost_squares import lost_squares, negative_squares
from stayfinite.observers.ownership import Hear, Ownership
from stayfinite.observers.replica_optimizers import ReplicaOptimizers
from stayfinite.observers.resumed_learning_rates import ResumedLearningRates
from stayfinite.recover.wrapped import unwrapped
from stayfinite.replay.float32 import HALF
from stayfinite.replay.measure import dtype_name, is_plain
from stayfinite.replay.sites import called_by_us
from stayfinite.replay.tracer import unfollowed
from stayfinite.watch.finite import nonfinite
from stayfinite.watch.optimizer_facts import optimizer_facts, rate_of

_NAMED = 16  # tensors of a loaded state that are not finite


@dataclass(slots=True)
class ObservedOptimizer:
    """One optimizer over its life."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    created: Place
    stepped: Place = field(default_factory=Place)
    steps: int = 0
    audit: UpdateAudit | None = None
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    facts: OptimizerFacts | None = None
    state_read: bool = False  # the script asked for its state before there was any


class UpdateListener(Protocol):
    """Someone who is told of updates and loads."""

    def before_update(self, optimizer: torch.optim.Optimizer, steps: int) -> None: ...

    def after_update(self, optimizer: torch.optim.Optimizer, loss: float | None) -> None: ...

    def optimizer_loaded(self, optimizer: torch.optim.Optimizer) -> None: ...


class OptimizerObserver:
    """All optimizers of a run."""

    def __init__(self, history: RunHistory, ownership: Ownership) -> None:
        self._history, self._ownership = history, ownership
        self.known: dict[int, ObservedOptimizer] = {}
        self.loads: list[tuple[weakref.ref[torch.optim.Optimizer], LoadEvent]] = []
        self.resumed_rates = ResumedLearningRates()
        self.replicas = ReplicaOptimizers()
        self.listeners: list[UpdateListener] = []
        self.on_step: Callable[[torch.optim.Optimizer], None] | None = None
        self.skips: Callable[[torch.optim.Optimizer], bool] = lambda optimizer: False
        """Whether the call of `step` that is made now is no update."""
        self.on_created: Callable[[], None] | None = None
        self._stepped: list[weakref.ref[torch.optim.Optimizer]] = []  # since the last step of the run
        self._listening = Listening()
        history.listeners.append(self._step_is_over)

    def install(self, hear: Hear) -> None:
        hear("optimizer_made", self._created)
        hear("optimizer_load", self._loaded)
        hear("optimizer_read", self._read)

    def listen_to_steps(self, paused: Callable[[], bool]) -> None:
        """Of every optimizer that is this run's, unless it is paused."""

        def heard(around: Callable[[torch.optim.Optimizer], None]) -> Callable[[torch.optim.Optimizer], None]:
            def hook(optimizer: torch.optim.Optimizer) -> None:
                if not paused() and self._ownership.of_optimizer(optimizer) and not self.skips(optimizer):
                    around(optimizer)

            return hook

        self._listening = listen_to_updates(heard(self._before), heard(self._after))

    def remove(self) -> None:
        self._listening.stop()

    def _created(self, original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._watch(optimizer, here())
        if self.on_created is not None:
            self.on_created()

    def _watch(self, optimizer: torch.optim.Optimizer, place: Place) -> ObservedOptimizer:
        seen = ObservedOptimizer(weakref.ref(optimizer), place)
        seen.facts = self._facts(optimizer, seen)
        self.known[id(optimizer)] = seen
        self.replicas.created(optimizer, rate_of(optimizer))
        return seen

    def find(self, optimizer: torch.optim.Optimizer) -> ObservedOptimizer:
        optimizer = unwrapped(optimizer)
        seen = self.known.get(id(optimizer))
        if seen is None or seen.optimizer() is not optimizer:
            seen = self._watch(optimizer, Place())
        return seen

    def _read(self, original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.find(optimizer).state_read |= not optimizer.state
        return original(optimizer, *args, **kwargs)

    def _loaded(
        self, original: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kw: Any
    ) -> Any:
        before, base = rate_of(optimizer), optimizer.param_groups[0].get("initial_lr")
        result = original(optimizer, state, *args, **kw)
        group = optimizer.param_groups[0]
        moments = bool(state.get("state")) if isinstance(state, dict) else True
        if not moments and self.find(optimizer).state_read and rate_of(optimizer) == before:
            return result  # a wrapper that prepares an optimizer reads its empty state and loads it again: no resume
        event = LoadEvent(
            kind="optimizer",
            place=here(),
            step=self._history.step,
            lr_before=before,
            lr_after=rate_of(optimizer),
            base_before=as_float(base),
            base_after=as_float(group.get("initial_lr")) if base is not None else None,
            moments_missing=not moments and self._had_stepped(optimizer, state),
            mid_schedule="initial_lr" in group
            and bool(optimizer.state or float(group["lr"]) != float(group["initial_lr"])),
        )
        with unfollowed():
            event = replace(
                event,
                nonfinite=_not_finite(optimizer),
                squares_lost=lost_squares(optimizer),
                negative=negative_squares(optimizer),
            )
        self.resumed_rates.loaded(optimizer, event.lr_after)
        for listener in self.listeners:
            listener.optimizer_loaded(optimizer)
        if not called_by_us():
            self.loads.append((weakref.ref(optimizer), event))
        return result

    def _had_stepped(self, optimizer: torch.optim.Optimizer, state: Any) -> bool:
        """An adaptive optimizer whose run had made steps, here or by its schedule: a fresh one has no moments."""
        groups = state.get("param_groups", []) if isinstance(state, dict) else []
        adaptive = [group for group in groups if "betas" in group]
        moved = any("initial_lr" in group and group.get("lr") != group["initial_lr"] for group in adaptive)
        return bool(adaptive) and (self._history.step > 0 or moved) and not self.find(optimizer).state_read

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        seen = self.find(optimizer)
        seen.stepped = here()
        if self.on_step is not None:
            self.on_step(optimizer)
        for listener in self.listeners:
            listener.before_update(optimizer, seen.steps)
        if any(event.lr_used is None for _, event in self.loads):
            self._note_rate_used(optimizer)
        audited = _is_power_of_two(seen.steps) or seen.steps % 64 == 0
        with unfollowed():
            if audited:
                seen.before = [
                    (p, p.detach().clone())
                    for g in optimizer.param_groups
                    for p in g["params"]
                    if p.dtype in HALF and p.grad is not None and is_plain(p)
                ]
            self.replicas.stepping(optimizer, seen.stepped)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        seen = self.find(optimizer)
        seen.steps += 1
        with unfollowed():
            if seen.before:
                self._audit(seen)
            if seen.steps <= 2:  # its state has been made: what is known if it goes before the run is over
                seen.facts = self._facts(optimizer, seen)
        self._stepped.append(weakref.ref(optimizer))
        if not self._history.guarded:  # nobody else says what a step is
            running = self._history.running
            record = StepRecord(self._history.step, running.loss, lr=rate_of(optimizer))
            self._history.add(replace(record, input_absmax=running.input_absmax))

    def _step_is_over(self, record: StepRecord) -> None:
        stepped, self._stepped = self._stepped, []
        for optimizer in (living for known in stepped if (living := known()) is not None):
            for listener in self.listeners if record.applied else ():
                listener.after_update(optimizer, record.loss)

    def _note_rate_used(self, optimizer: torch.optim.Optimizer) -> None:
        rate = rate_of(optimizer)
        if rate is None:
            return
        change = self.resumed_rates.used(optimizer, rate)
        self.loads = [
            (
                ref,
                replace(event, lr_used=rate, rescheduled=change)
                if ref() is optimizer and event.lr_used is None
                else event,
            )
            for ref, event in self.loads
        ]

    def _audit(self, seen: ObservedOptimizer) -> None:
        elements = unchanged = 0
        for parameter, before in seen.before:
            if parameter.grad is None:
                continue
            moving = parameter.grad != 0
            elements += int(moving.sum())
            unchanged += int(((parameter.detach() == before) & moving).sum())
        dtype = dtype_name(seen.before[0][1].dtype)
        seen.before = []
        last = seen.audit or UpdateAudit(dtype, 0, 0, 0, 0)
        seen.audit = UpdateAudit(
            dtype=dtype,
            elements=elements,
            unchanged=unchanged,
            audited_steps=last.audited_steps + 1,
            frozen_steps=last.frozen_steps + int(elements > 0 and unchanged == elements),
            place=seen.stepped,
        )

    def _facts(self, optimizer: torch.optim.Optimizer, seen: ObservedOptimizer) -> OptimizerFacts:
        return optimizer_facts(optimizer, seen.steps, seen.created, seen.stepped)

    def facts(self) -> tuple[OptimizerFacts, ...]:
        found = []
        for seen in self.known.values():
            optimizer = seen.optimizer()
            if optimizer is not None:
                with unfollowed():
                    seen.facts = self._facts(optimizer, seen)
            if seen.facts is not None:
                found.append(replace(seen.facts, steps=seen.steps, stepped=seen.stepped))
        return tuple(found)

    def audits(self) -> tuple[UpdateAudit, ...]:
        return tuple(seen.audit for seen in self.known.values() if seen.audit is not None)

    def load_events(self) -> tuple[LoadEvent, ...]:
        """Loads, with the rate that was really used: at the next step, or else at the end."""
        events = []
        for reference, event in self.loads:
            optimizer = reference()
            if event.lr_used is None and optimizer is not None:
                event = replace(event, lr_used=rate_of(optimizer))
            events.append(event)
        return tuple(events)


def _not_finite(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """What of its state holds NaN or Inf, by the number that its parameter has in a state_dict."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    named = [
        (f"{name} of parameter {number}", value)
        for number, weight in enumerate(weights)
        for name, value in optimizer.state.get(weight, {}).items()
        if isinstance(value, torch.Tensor) and is_plain(value)
    ]
    return tuple(bad.name for bad in nonfinite(named)[:_NAMED])


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
