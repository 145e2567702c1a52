"""Call: one call of an op as a measurement sees it: tensors, numbers, output, and who made the tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from stayfinite.findings.subjects.traced_birth import Plain, Producer


@dataclass(frozen=True, slots=True)
class Call:
    """The tensors as they were before the op ran."""

    tensors: Mapping[str, torch.Tensor]
    scalars: Mapping[str, Plain]
    output: torch.Tensor | None
    producers: Mapping[str, tuple[Producer, ...]] = field(default_factory=dict)

    def tensor(self, *names: str) -> torch.Tensor | None:
        """The first argument with one of these names, as float64 where it holds real numbers."""
        for name in names:
            value = self.tensors.get(name)
            if value is not None:
                return value.double() if value.dtype.is_floating_point else value
        return None

    def number(self, name: str) -> float | None:
        """A plain argument as a number."""
        value = self.scalars.get(name)
        return float(value) if isinstance(value, (bool, int, float)) else None

    def dims(self, rank: int) -> tuple[int, ...]:
        """The dimensions that `dim` names; all of them when it is absent."""
        dim = self.scalars.get("dim")
        if isinstance(dim, int):
            return (dim % max(rank, 1),)
        if isinstance(dim, tuple) and dim:
            return tuple(int(d) % max(rank, 1) for d in dim if isinstance(d, int))
        return tuple(range(rank))


Measurement: TypeAlias = Callable[[Call], dict[str, Plain]]


def count(mask: torch.Tensor) -> int:
    return int(mask.sum())
