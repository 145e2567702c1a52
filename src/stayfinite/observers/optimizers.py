"""Observes optimizers: creation, rate, gradients before a step, what a step changes in half-precision weights."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stayfinite.findings import as_float
from stayfinite.findings.subjects.run_record import LoadEvent, OptimizerFacts, Place, UpdateAudit
from stayfinite.hooks import Listening, listen
from stayfinite.observers.history import HISTORY_KEPT, RunHistory, here
from stayfinite.observers.replica_optimizers import ReplicaOptimizers
from stayfinite.observers.resumed_learning_rates import ResumedLearningRates
from stayfinite.replay.float32 import HALF
from stayfinite.replay.measure import dtype_name, is_plain
from stayfinite.replay.sites import called_by_us
from stayfinite.watch.optimizer_facts import optimizer_facts, rate_of
from stayfinite.watch.updates import UpdateSampler

__all__ = ["ObservedOptimizer", "OptimizerObserver", "rate_of", "total_norm"]


@dataclass(slots=True)
class ObservedOptimizer:
    """One optimizer over its life."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    created: Place
    stepped: Place = field(default_factory=Place)
    steps: int = 0
    lrs: list[float] = field(default_factory=list)
    audit: UpdateAudit | None = None
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    facts: OptimizerFacts | None = None
    sampler: UpdateSampler | None = None
    state_read: bool = False  # the script asked for its state before there was any


def total_norm(gradients: list[torch.Tensor]) -> float:
    """The norm over all gradients; NaN or Inf when any is not finite. One fused pass per device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    square = 0.0
    for group in groups.values():
        norms = torch.stack(torch._foreach_norm(group))
        square += float(torch.linalg.vector_norm(norms.double())) ** 2
    return math.sqrt(square) if square >= 0 else math.nan


class UpdateListener(Protocol):
    """Someone who is told of updates and loads."""

    def before_update(self, optimizer: torch.optim.Optimizer, steps: int) -> None: ...

    def after_update(self, optimizer: torch.optim.Optimizer, loss: float | None) -> None: ...

    def optimizer_loaded(self, optimizer: torch.optim.Optimizer) -> None: ...


class OptimizerObserver:
    """All optimizers of a run."""

    def __init__(self, log: RunHistory, quiet: Callable[[], Any]) -> None:
        self._log = log
        self._quiet = quiet  # a context in which nothing is traced
        self.known: dict[int, ObservedOptimizer] = {}
        self.loads: list[tuple[weakref.ref[torch.optim.Optimizer], LoadEvent]] = []
        self.resumed_rates = ResumedLearningRates()
        self.twins = ReplicaOptimizers(total_norm)
        self.listeners: list[UpdateListener] = []
        self.before_step: Callable[[torch.optim.Optimizer, float | None, list[torch.Tensor]], None] | None = (
            None
        )
        self.on_step: Callable[[torch.optim.Optimizer], None] | None = None
        self.after_step: Callable[[torch.optim.Optimizer], None] | None = None
        self.on_created: Callable[[], None] | None = None
        self._moved: dict[int, torch.Tensor] = {}  # by step: how far its update went, still on the device
        self._handles: list[Any] = []

    def install(self, listening: Listening) -> None:
        listening.add(listen("optimizer_made", self._created))
        listening.add(listen("optimizer_load", self._loaded))
        listening.add(listen("optimizer_read", self._read))
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _created(self, original: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self._watch(optimizer, here())
        if self.on_created is not None:
            self.on_created()

    def _watch(self, optimizer: torch.optim.Optimizer, place: Place) -> ObservedOptimizer:
        seen = ObservedOptimizer(weakref.ref(optimizer), place)
        seen.facts = self._facts(optimizer, seen)
        self.known[id(optimizer)] = seen
        self.twins.created(optimizer, rate_of(optimizer))
        return seen

    def find(self, optimizer: torch.optim.Optimizer) -> ObservedOptimizer:
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
        event = LoadEvent(
            kind="optimizer",
            place=here(),
            step=self._log.step,
            lr_before=before,
            lr_after=rate_of(optimizer),
            base_before=as_float(base),
            base_after=as_float(group.get("initial_lr")) if base is not None else None,
            # A wrapper that prepares an optimizer reads its empty state and loads it again: no resume.
            moments_missing=not moments and _says_it_stepped(state) and not self.find(optimizer).state_read,
            mid_schedule="initial_lr" in group
            and bool(optimizer.state or float(group["lr"]) != float(group["initial_lr"])),
        )
        self.resumed_rates.loaded(optimizer, event.lr_after)
        for listener in self.listeners:
            listener.optimizer_loaded(optimizer)
        if not called_by_us():
            self.loads.append((weakref.ref(optimizer), event))
        return result

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen = self.find(optimizer)
        seen.stepped = here()
        if self.on_step is not None:
            self.on_step(optimizer)
        for listener in self.listeners:
            listener.before_update(optimizer, seen.steps)
        rate = rate_of(optimizer)
        if rate is not None:
            seen.lrs.append(rate)
            self._note_rate_used(optimizer, rate)
        with self._quiet():
            gradients = [
                p.grad
                for g in optimizer.param_groups
                for p in g["params"]
                if p.grad is not None and is_plain(p.grad)
            ]
            norm = total_norm(gradients) if gradients and self._log.current.grad_norm is None else None
            if norm is not None:
                self._log.current.grad_norm = norm
            if _is_power_of_two(seen.steps) or seen.steps % 64 == 0:
                seen.before = [
                    (p, p.detach().clone())
                    for g in optimizer.param_groups
                    for p in g["params"]
                    if p.dtype in HALF and p.grad is not None and is_plain(p)
                ]
            self.twins.stepping(optimizer, gradients, seen.stepped)
            if seen.sampler is None:
                seen.sampler = UpdateSampler(
                    [p for g in optimizer.param_groups for p in g["params"] if is_plain(p)]
                )
            seen.sampler.before()
            if self.before_step is not None:
                self.before_step(optimizer, self._log.current.grad_norm, gradients)

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        seen = self.find(optimizer)
        seen.steps += 1
        with self._quiet():
            if seen.before:
                self._audit(seen)
            seen.facts = self._facts(optimizer, seen) if seen.steps <= 2 else seen.facts
            moved = seen.sampler.after() if seen.sampler is not None else None
        if moved is not None:
            self._moved[self._log.step] = moved
            self._moved.pop(self._log.step - HISTORY_KEPT, None)
        self._log.optimizer_steps += 1
        self._log.close_step(seen.lrs[-1] if seen.lrs else None, None, applied=True)
        for listener in self.listeners:
            listener.after_update(optimizer, self._log.history[-1].loss)
        if self.after_step is not None:
            self.after_step(optimizer)

    def _note_rate_used(self, optimizer: torch.optim.Optimizer, rate: float) -> None:
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
        last = seen.audit or UpdateAudit(0, dtype, 0, 0, 0, 0)
        seen.audit = UpdateAudit(
            step=self._log.step,
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
                with self._quiet():
                    seen.facts = self._facts(optimizer, seen)
            if seen.facts is not None:
                found.append(replace(seen.facts, steps=seen.steps, stepped=seen.stepped))
        return tuple(found)

    def update_ratios(self) -> dict[int, float]:
        """By step: the norm of the update over that of the weights before it."""
        with self._quiet():
            return {step: float(moved) for step, moved in self._moved.items()}

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


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _says_it_stepped(state: Any) -> bool:
    """A state without moments is normal for plain SGD and for a fresh optimizer."""
    groups = state.get("param_groups", []) if isinstance(state, dict) else []
    return any("betas" in group for group in groups)
