"""GroupVitals: the weights of each parameter group, how far an update moves them, how fresh Adam's memory is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.watch.updates import UpdateSampler

_HALF = (torch.float16, torch.bfloat16)
_TINY = torch.finfo(torch.float32).tiny
_MOST_GROUPS = 64


class GroupVitals:
    """`before` the update, with raw gradients; `after` it. Both only on a sampled step."""

    def __init__(self) -> None:
        self._samplers: dict[tuple[int, ...], UpdateSampler] = {}
        self._groups: list[dict[str, Tensor]] = []
        self._open: list[tuple[dict[str, Tensor], UpdateSampler]] = []
        self._shares: dict[str, Tensor] = {}

    @torch.no_grad()
    def before(self, optimizers: Sequence[Optimizer]) -> None:
        self._groups, self._open, self._shares = [], [], {}
        half: list[Tensor] = []
        for weights, gradients, squares, correction in chain.from_iterable(map(_with_state, optimizers)):
            if not weights:
                continue
            device = weights[0].device
            measured = {"weight norm": _norm(weights, device)}
            if squares and len(squares) == len(gradients):
                remembered = _sum(squares, device) / correction
                ratio = _norm(gradients, device) ** 2 / remembered.clamp_min(_TINY)
                measured["gradient / sqrt(v)"] = ratio.sqrt()
            half += [g for g in gradients if g.dtype in _HALF]
            sampler = self._sampler_of(weights)
            sampler.before()
            self._open.append((measured, sampler))
            self._groups.append(measured)
        if half:
            device, count = half[0].device, sum(g.numel() for g in half)
            zero = torch.stack([torch.count_nonzero(g == 0).to(device) for g in half]).sum()
            tiny = [torch.count_nonzero(g.abs() < torch.finfo(g.dtype).tiny).to(device) for g in half]
            below = torch.stack(tiny).sum() - zero
            self._shares = {"gradients": zero / count, "subnormal gradients": below / count}

    def _sampler_of(self, weights: list[Tensor]) -> UpdateSampler:
        key = tuple(map(id, weights))
        if key not in self._samplers:
            if len(self._samplers) >= _MOST_GROUPS:  # groups that are made anew again and again
                self._samplers.clear()
            self._samplers[key] = UpdateSampler(weights)
        return self._samplers[key]

    def after(self) -> None:
        """The update was made."""
        for measured, sampler in self._open:
            ratio = sampler.after()
            if ratio is not None:
                measured["update / weight"] = ratio
        self._open = []

    def scalars(self) -> list[Tensor]:
        return [value for measured in (*self._groups, self._shares) for value in measured.values()]

    def told(self, numbers: Iterator[float]) -> tuple[tuple[dict[str, float], ...], dict[str, float]]:
        """One dict a group, and the shares of zeros and subnormals in half gradients."""
        *groups, shares = [
            {name: next(numbers) for name in measured} for measured in (*self._groups, self._shares)
        ]
        return tuple(groups), shares


def _with_state(optimizer: Optimizer) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor], float]]:
    """Weights that have a gradient, the gradients, Adam's mean squares of them, and their bias correction."""
    for group in optimizer.param_groups:
        having = [p for p in group["params"] if p.grad is not None and _plain(p) and _plain(p.grad)]
        states = [optimizer.state.get(p, {}) for p in having]
        squares = [s["exp_avg_sq"] for s in states if isinstance(s.get("exp_avg_sq"), Tensor)]
        yield having, [p.grad for p in having], squares, _correction(group, states)


def _correction(group: dict[str, Any], states: list[dict[str, Any]]) -> float:
    """1 - beta2 ** t; 1 where the step count is on a device that would have to be waited for."""
    step = states[0].get("step") if states else None
    if isinstance(step, Tensor):
        step = float(step) if step.device.type == "cpu" else None
    betas = group.get("betas")
    if not isinstance(step, (int, float)) or step < 1 or not isinstance(betas, tuple):
        return 1.0
    corrected = 1.0 - float(betas[1]) ** step
    return corrected if corrected > 0 and math.isfinite(corrected) else 1.0


def _plain(tensor: Tensor | None) -> bool:
    return (
        tensor is not None
        and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and type(tensor) in (Tensor, torch.nn.Parameter)
    )


def _norm(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    norms = torch._foreach_norm([t.detach() for t in tensors], 2.0, torch.float32)
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), 2.0)
    return total


def _sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Of numbers that are not negative."""
    norms = torch._foreach_norm([t.detach() for t in tensors], 1.0, torch.float32)
    return torch.stack([norm.to(device) for norm in norms]).sum()
