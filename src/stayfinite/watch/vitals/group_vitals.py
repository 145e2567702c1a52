"""GroupVitals: the weights of each parameter group, how far the last update moved them, how fresh Adam's memory is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.watch.updates import UpdateSampler
from stayfinite.watch.vitals.shares import HALF, nonzero_and_normal

_TINY = torch.finfo(torch.float32).tiny
_MOST_GROUPS, _MOST_SAMPLERS = 64, 256
_TENSORS = 4
"""Adam's memory, and zeros, are measured on the largest tensors of a group."""


class _Group:
    """Where the scalars of one group stand."""

    def __init__(self, weights: int, beta2: float | None) -> None:
        self.weights, self.beta2 = weights, beta2
        self.norms = 0  # of the weights, and behind them of their gradients
        # which weight, and where the sum of its mean squares stands
        self.remembered: list[tuple[int, int]] = []
        self.step: int | None = None
        # changes, weights behind them, and how many of each
        self.update: tuple[int, int, float] | None = None


class GroupVitals:
    """`update_begins` and `update_made` the step before a sampled one; `gathered` in it, with raw gradients."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self._scalars: list[Tensor] = []
        self._shares: list[tuple[int, int]] = []
        self._samplers: dict[tuple[int, int], UpdateSampler] = {}  # by optimizer and group
        self._begun: list[tuple[int, int]] = []
        # the last update, if it was measured
        self._made: dict[tuple[int, int], tuple[list[Tensor], float]] = {}

    @torch.no_grad()
    def gathered(self, optimizers: Sequence[Optimizer]) -> None:
        """All gradients of a sampled step are there, and no weight has moved yet."""
        self._groups, self._scalars, self._shares = [], [], []
        measured: list[tuple[_Group, list[Tensor]]] = []
        for optimizer in optimizers:
            for index, group in enumerate(optimizer.param_groups[:_MOST_GROUPS]):
                weights = _trained(group)
                if not weights:
                    continue
                found = _Group(len(weights), _beta2(group))
                self._groups.append(found)
                measured.append((found, weights))
                largest = sorted(range(len(weights)), key=lambda i: -weights[i].numel())[:_TENSORS]
                self._remembered(found, [(i, optimizer.state.get(weights[i], {})) for i in largest])
                self._count([weights[i].grad for i in largest])
                norms, least = self._made.get((id(optimizer), index), ([], 1.0))
                if norms:
                    found.update = (len(self._scalars), len(norms) // 2, least)
                    self._scalars += norms
        both = [t for _, ws in measured for t in (*ws, *(w.grad for w in ws if w.grad is not None))]
        norms = _norms(both)
        for found, _ in measured:
            found.norms = len(self._scalars)
            self._scalars += norms[: 2 * found.weights]
            norms = norms[2 * found.weights :]

    def _remembered(self, found: _Group, states: Sequence[tuple[int, dict[str, Any]]]) -> None:
        """Adam's mean squares of the gradients, and how many steps they are a mean of."""
        for i, state in states:
            square, step = state.get("exp_avg_sq"), state.get("step")
            if isinstance(square, Tensor) and _plain(square):
                found.remembered.append((i, self._add(square.sum(dtype=torch.float32))))
                if found.step is None and isinstance(step, Tensor) and step.dim() == 0:
                    found.step = self._add(step)

    def forget_updates(self, optimizers: Sequence[Optimizer]) -> None:
        """They are about to make another update."""
        numbers = {id(optimizer) for optimizer in optimizers}
        self._made = {key: norms for key, norms in self._made.items() if key[0] not in numbers}

    def update_begins(self, optimizers: Sequence[Optimizer]) -> None:
        self._begun = []
        if len(self._samplers) > _MOST_SAMPLERS:  # optimizers that are made anew again and again
            self._samplers.clear()
        for optimizer in optimizers:
            for index, group in enumerate(optimizer.param_groups[:_MOST_GROUPS]):
                key, weights = (id(optimizer), index), [p for p in group["params"] if _plain(p)]
                sampler = self._samplers.get(key)
                if sampler is None or not sampler.is_of(weights):
                    sampler = self._samplers[key] = UpdateSampler(weights)
                sampler.before()
                self._begun.append(key)

    def update_made(self) -> None:
        made = {key: self._samplers[key] for key in self._begun}
        self._made.update({key: (sampler.norms(), sampler.least) for key, sampler in made.items()})
        self._begun = []

    def update_dropped(self) -> None:
        self._begun = []

    def _add(self, scalar: Tensor) -> int:
        self._scalars.append(scalar)
        return len(self._scalars) - 1

    def _count(self, gradients: Sequence[Tensor | None]) -> None:
        for gradient in gradients:
            if gradient is not None and gradient.dtype in HALF:
                counts = nonzero_and_normal(gradient)
                self._shares.append((len(self._scalars), counts.numel))
                self._scalars += counts.scalars

    def scalars(self) -> list[Tensor]:
        return self._scalars

    def told(self, numbers: Sequence[float]) -> tuple[tuple[dict[str, float], ...], dict[str, float]]:
        """One dict a group, and the shares of zeros and subnormals in half gradients."""
        count = sum(numel for _, numel in self._shares)
        shares = {}
        if count:
            nonzero = sum(numbers[at] for at, _ in self._shares)
            normal = sum(numbers[at + 1] for at, _ in self._shares)
            shares = {"gradients": 1 - nonzero / count, "subnormal gradients": (nonzero - normal) / count}
        return tuple(_of_group(group, numbers) for group in self._groups), shares


def _of_group(group: _Group, numbers: Sequence[float]) -> dict[str, float]:
    gradients = group.norms + group.weights
    told = {"weight norm": math.hypot(*numbers[group.norms : gradients])}
    if group.remembered:
        step = numbers[group.step] if group.step is not None else 0.0
        corrected = 1 - group.beta2**step if group.beta2 is not None and step >= 1 else 1.0
        remembered = sum(numbers[at] for _, at in group.remembered) / (corrected or 1.0)
        fresh = math.hypot(*(numbers[gradients + i] for i, _ in group.remembered))
        told["gradient / sqrt(v)"] = fresh / math.sqrt(max(remembered, _TINY))
    if group.update is not None:
        at, count, least = group.update
        change = math.hypot(*numbers[at : at + count])
        told["update / weight"] = change / max(math.hypot(*numbers[at + count : at + 2 * count]), least)
    return told


def _norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """In float32, in which a norm of half numbers fits; of float64 in float64."""
    wide = [t for t in tensors if t.dtype is torch.float64]
    others = [t for t in tensors if t.dtype is not torch.float64]
    of_wide = iter(torch._foreach_norm(wide, 2.0)) if wide else iter(())
    of_others = iter(torch._foreach_norm(others, 2.0, torch.float32)) if others else iter(())
    return [next(of_wide if t.dtype is torch.float64 else of_others) for t in tensors]


def _trained(group: dict[str, Any]) -> list[Tensor]:
    """The weights that have a gradient."""
    return [p for p in group["params"] if p.grad is not None and _plain(p) and _plain(p.grad)]


def _beta2(group: dict[str, Any]) -> float | None:
    betas = group.get("betas")
    return float(betas[1]) if isinstance(betas, (tuple, list)) and len(betas) > 1 else None


def _plain(tensor: Tensor | None) -> bool:
    return (
        tensor is not None
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.numel() > 0
    )
