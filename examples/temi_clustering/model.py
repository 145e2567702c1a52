"""Sixteen linear cluster heads on a frozen image embedding, and the EMA teacher that follows them."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ClusterHead(nn.Linear):
    """Embedding -> one logit per cluster."""

    def __init__(self, dim: int, clusters: int, init_std: float) -> None:
        super().__init__(dim, clusters)
        nn.init.trunc_normal_(self.weight, std=init_std)
        nn.init.zeros_(self.bias)


class NormalisedHead(nn.Linear):
    """Cosine of a unit embedding and each cluster direction: a logit stays in [-1, 1]."""

    def __init__(self, dim: int, clusters: int, init_std: float) -> None:
        super().__init__(dim, clusters, bias=False)
        nn.init.trunc_normal_(self.weight, std=init_std)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, unit_length(self.weight))


class MultiHead(nn.Module):
    """Parallel heads that never see each other; the output is (heads, batch, clusters)."""

    def __init__(self, heads: Iterable[nn.Module], unit_input: bool) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.unit_input = unit_input

    def forward(self, x: Tensor) -> Tensor:
        if self.unit_input:
            x = unit_length(x)
        return torch.stack([head(x) for head in self.heads])


def unit_length(x: Tensor) -> Tensor:
    # Imported here, because only normalised heads need it: the plain model is torch alone.
    from stayfinite.ops import normalize

    return normalize(x, dim=-1)


class Teacher(nn.Module):
    """An exponential moving average of the student; it receives no gradient."""

    def __init__(self, student: nn.Module, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.network = copy.deepcopy(student).requires_grad_(False)

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        for mine, theirs in zip(self.network.parameters(), student.parameters(), strict=True):
            mine.mul_(self.momentum).add_(theirs, alpha=1 - self.momentum)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out


def build_student(dim: int, clusters: int, heads: int, init_std: float, normalised: bool) -> MultiHead:
    head = NormalisedHead if normalised else ClusterHead
    return MultiHead((head(dim, clusters, init_std) for _ in range(heads)), unit_input=normalised)
