"""Learning rates as they really are: in the optimizers' groups and in the schedulers' own memory of their peaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from stayfinite.recover.wrapped import optimizer_of

_RATE_KEYS = ("initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr")
_SCHEDULER_LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")
_SCHEDULER_FLOOR = "eta_min"


@dataclass(frozen=True, slots=True)
class Rate:
    """One parameter group's rate: now, and the base or peak its schedule works from."""

    optimizer: int
    group: int
    lr: float
    peak: float

    def __str__(self) -> str:
        at = f"optimizer {self.optimizer}, group {self.group}" if self.optimizer else f"group {self.group}"
        if self.peak == self.lr:
            return f"{at}: {self.lr:.6g}"
        return f"{at}: {self.lr:.6g} (peak {self.peak:.6g})"


def rates_of(groups_of_optimizers: Sequence[Sequence[dict[str, Any]]]) -> list[Rate]:
    """The rates in `optimizer.param_groups`, live or out of a state dict."""
    found = []
    for index, groups in enumerate(groups_of_optimizers):
        for g, group in enumerate(groups):
            lr = float(group["lr"]) if "lr" in group else float("nan")
            peak = float(group.get("max_lr", group.get("initial_lr", lr)))
            found.append(Rate(index, g, lr, peak))
    return found


def scale_rates(
    optimizers: Sequence[Optimizer], schedulers: Sequence[Any], factors: Sequence[Sequence[float]]
) -> None:
    """Multiply every rate of group g of optimizer o by factors[o][g], wherever a schedule remembers it."""
    tensors: dict[int, float] = {}
    for optimizer, per_group in zip(optimizers, factors, strict=True):
        for group, factor in zip(optimizer.param_groups, per_group, strict=True):
            _scale_group_rate(group, factor, tensors)
            for key in _RATE_KEYS:
                if key in group:
                    group[key] = group[key] * factor
    of_optimizer = {id(optimizer): factors[index] for index, optimizer in enumerate(optimizers)}
    for scheduler in flatten(schedulers):
        own = of_optimizer.get(id(optimizer_of(scheduler)), ())
        for name in _SCHEDULER_LISTS:
            values = getattr(scheduler, name, None)
            if own and isinstance(values, list) and len(values) == len(own):
                setattr(scheduler, name, [v * f for v, f in zip(values, own, strict=True)])
        floor = getattr(scheduler, _SCHEDULER_FLOOR, None)
        # one floor for all groups: it must not lie above any of them
        if own and isinstance(floor, (int, float)):
            setattr(scheduler, _SCHEDULER_FLOOR, floor * min(own))


def _scale_group_rate(group: dict[str, Any], factor: float, done: dict[int, float]) -> None:
    """A tensor is changed in place: a compiled or capturable step holds on to it, and several groups may share it."""
    rate = group.get("lr")
    if not isinstance(rate, torch.Tensor):
        if rate is not None:
            group["lr"] = rate * factor
    elif id(rate) not in done:
        rate.mul_(factor)
        done[id(rate)] = factor
    elif done[id(rate)] != factor:
        group["lr"] = rate * (factor / done[id(rate)])


def lower_rates(optimizers: Sequence[Optimizer], schedulers: Sequence[Any], factor: float) -> None:
    """One factor for all groups."""
    scale_rates(optimizers, schedulers, [[factor] * len(o.param_groups) for o in optimizers])


def factors_to(
    now: Sequence[Rate], wanted: Sequence[Rate], optimizers: Sequence[Optimizer]
) -> list[list[float]]:
    """By what each group must be multiplied so that its peak becomes the wanted one."""
    factors = [[1.0] * len(optimizer.param_groups) for optimizer in optimizers]
    for have, want in zip(now, wanted, strict=True):
        if have.peak > 0:
            factors[have.optimizer][have.group] = want.peak / have.peak
    return factors


def flatten(schedulers: Sequence[Any]) -> Iterator[Any]:
    """All schedulers, those within a chain or sequence too."""
    for scheduler in schedulers:
        yield scheduler
        inner = getattr(scheduler, "_schedulers", None)
        if isinstance(inner, (list, tuple)):
            yield from flatten(inner)
