"""How far each float input may go: as declared, or as the batch itself shows, times a factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stayfinite.probe import tree
from stayfinite.probe.conditions import declared
from stayfinite.probe.target import Probe


@dataclass(frozen=True, slots=True)
class Box:
    """The bounds of every float input."""

    low: dict[str, float]
    high: dict[str, float]
    declared: bool
    times: float = 1.0

    def clamp(self, name: str, value: Tensor) -> Tensor:
        return value.clamp(self.low[name], self.high[name])

    def width(self, name: str) -> float:
        return self.high[name] - self.low[name]

    def fill(self, name: str, like: Tensor, part: float) -> Tensor:
        """A constant: 0 is the lower end, 1 the upper."""
        return torch.full_like(like, self.low[name] + part * self.width(name))

    def draw(self, name: str, like: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like)
        return self.clamp(name, self.low[name] + uniform * self.width(name))

    @property
    def pairs(self) -> dict[str, tuple[float, float]]:
        return {name: (self.low[name], self.high[name]) for name in self.low}


def box(probe: Probe, batch: Any, times: float) -> Box:
    """An input without a declared range may be `times` as large as the batch shows; its sign is kept if it has one."""
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    whole = True
    positive = tree.scales(batch)
    for name, tensor in tree.inputs(batch).items():
        pair = declared(probe, name)
        if pair is not None:
            low[name], high[name] = float(pair[0]), float(pair[1])
            continue
        whole = False
        least, most = float(tensor.min()), float(tensor.max())
        reach = max(abs(least), abs(most), 1e-3) * times
        low[name] = least if name in positive else 0.0 if least >= 0 else -reach
        high[name] = 0.0 if most <= 0 and least < 0 else reach
    return Box(low, high, whole and bool(low), times)
