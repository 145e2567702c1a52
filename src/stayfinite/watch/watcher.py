"""Watcher: reads each step's gradients and numbers and says whether the step may be applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from stayfinite.watch import spikes
from stayfinite.watch.finite import sampled_peak
from stayfinite.watch.losses import Loss
from stayfinite.watch.observed import ranges
from stayfinite.watch.sentinel import Reading, read
from stayfinite.watch.updates import UpdateSampler
from stayfinite.watch.verdict import Marks, Numbers, StepVerdict

Trouble = Literal["setting", "scale", "loss", "gradient", "update", "spike"]
_FACTORS = {"loss": 1.5, "gradient norm": 4.0, "update": 10.0}
"""By how much each quantity must jump to be called a spike at all."""
_FIRST_INPUTS, _THEN_EVERY = 8, 16
_MOST_SAMPLERS = 64  # optimizers that are made anew again and again


@dataclass(frozen=True, slots=True)
class Call:
    """A step function and its arguments, and what its free names stood for when it was called."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    names: dict[str, Any]

    def __call__(self) -> Any:
        return self.fn(*self.args)

    @classmethod
    def of(cls, fn: Callable[..., Any], args: tuple[Any, ...]) -> Call:
        return cls(fn, args, _names_used(fn))

    def tensors(self) -> list[Tensor]:
        """Those it is given: as arguments, or by the names it uses."""
        given = [leaf for value in (*self.args, *self.names.values()) for leaf in tree_leaves(value)]
        return [leaf for leaf in given if isinstance(leaf, Tensor)]

    def changed_names(self) -> list[str]:
        """Names that stand for other tensors now: called again, the function would compute something else."""
        now = _names_used(self.fn)
        return [name for name, was in self.names.items() if now.get(name) is not was and _holds_tensors(was)]


def _names_used(fn: Callable[..., Any]) -> dict[str, Any]:
    function = getattr(fn, "__func__", fn)
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a cell that is still empty
            names[name] = cell.cell_contents
    return names


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


@dataclass(slots=True)
class Window:
    """The micro-batches of one update: their losses, and what is needed to say more about them if it fails."""

    started: float = field(default_factory=time.perf_counter)
    losses: list[Loss] = field(default_factory=list)
    batches: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # that made the losses, to be made again
    # forward and backward, to be run again
    framework_steps: list[Callable[[], Any]] = field(default_factory=list)
    observed: dict[str, Tensor] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # components this update does without
    reading: Reading | None = None


class Watcher:
    """Keeps the statistics of a run. Non-finite values never enter them."""

    def __init__(self, names: Mapping[Tensor, str]) -> None:
        self._names = names
        self._samplers: dict[int, UpdateSampler] = {}  # by the first parameter that an update trains
        self._spikes = {name: spikes.SpikeState(factor) for name, factor in _FACTORS.items()}
        self._update_ratio: Tensor | None = None  # of the last update that nobody has asked for
        self._ratio_before: Tensor | None = None  # of the one before it, if nobody had asked for that
        self._asked = 0

    def _looks_at_inputs(self) -> bool:
        """At first every time, then now and then: enough to know what is usual."""
        self._asked += 1
        return self._asked <= _FIRST_INPUTS or self._asked % _THEN_EVERY == 0

    def read(self, parameters: Sequence[Tensor], scale: Tensor | None = None) -> Reading:
        return read(parameters, self._names, scale)

    def numbers(
        self,
        window: Window,
        losses: Sequence[Loss],
        norm: Tensor,
        scale: Tensor | None,
        gather: Callable[[Tensor], Tensor] | None,
        marks: Marks | None = None,
        vitals: Tensor | None = None,
        *,
        update_was_made: bool = False,
    ) -> Numbers:
        """This step's numbers, and how far the update of the step before went; `update_was_made`: this step's own was
        made before anything of it could be looked at."""
        observed = ranges(window.observed) if window.observed else {}
        inputs = sampled_peak(window.batches) if self._looks_at_inputs() else None
        if update_was_made:
            moved, self._ratio_before = self._ratio_before, None
        else:
            moved, self._update_ratio = self._update_ratio, None
        return Numbers(losses, norm, scale, moved, observed, gather, inputs, marks, vitals)

    def measure(self, update: Callable[[], Any], parameters: Sequence[Tensor], *, also: bool = False) -> None:
        """Make the update and measure how far it moves the weights that it trains. `also`: a step that another
        optimizer has begun; the larger of its updates counts."""
        sampler = self._sampler_of(parameters)
        sampler.before()
        update()
        moved, earlier = sampler.after(), self._update_ratio
        if also and moved is not None and earlier is not None:
            self._update_ratio = torch.maximum(moved, earlier.to(moved.device))
        else:
            self._ratio_before, self._update_ratio = earlier, moved

    def _sampler_of(self, parameters: Sequence[Tensor]) -> UpdateSampler:
        key = id(parameters[0]) if parameters else 0
        known = self._samplers.get(key)
        if known is None or not known.is_of(parameters):
            if len(self._samplers) >= _MOST_SAMPLERS:
                self._samplers.clear()
            known = self._samplers[key] = UpdateSampler(parameters)
        return known

    def last_update(self) -> float | None:
        """How far the last update moved the weights, if no step has asked since."""
        ratio, self._update_ratio = self._update_ratio, None
        return float(ratio) if ratio is not None else None

    def pending_update(self) -> float | None:
        """The same, and a step may still ask: one transfer."""
        return float(self._update_ratio) if self._update_ratio is not None else None

    @staticmethod
    def trouble(verdict: StepVerdict) -> Trouble | None:
        """What of the step is not finite."""
        if not verdict.scale_is_finite:
            return "scale"
        if not verdict.loss_is_finite:
            return "loss"
        return None if verdict.norm_is_finite else "gradient"

    def jumps(self, verdict: StepVerdict) -> dict[str, spikes.Spike]:
        """Which of the step's numbers stand out from the recent ones."""
        found = {name: spikes.judge(self._spikes[name], value) for name, value in _values(verdict).items()}
        return {name: spike for name, spike in found.items() if spike is not None}

    def is_spike(self, verdict: StepVerdict) -> bool:
        """Loss and gradient norm jump together: a bad batch. One of them alone is the noise of a healthy run."""
        return {"loss", "gradient norm"} <= set(self.jumps(verdict))

    def learn(self, verdict: StepVerdict) -> None:
        """The step was applied: its numbers are now part of what is normal."""
        for name, value in _values(verdict).items():
            self._spikes[name], _ = spikes.update(self._spikes[name], value)

    def forget(self) -> None:
        """The run has jumped (a rollback, a new level): what was normal no longer is."""
        self._spikes = {name: spikes.forget(state) for name, state in self._spikes.items()}
        self._update_ratio = None


def _values(verdict: StepVerdict) -> dict[str, float]:
    values = {"loss": verdict.loss, "gradient norm": verdict.grad_norm, "update": verdict.update_ratio}
    return {name: value for name, value in values.items() if value is not None}
