"""Healthy trainings in which something grows on purpose: inputs, weights, sequences, batches, pictures, scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, Callable[[], Tensor]]


def _share(steps: Iterator[int], over: int) -> float:
    """How far the change has come, from 0 to 1."""
    return min(1.0, next(steps) / over)


def larger_inputs() -> Made:
    """A curriculum: inputs become 100 times as large, under float16 autocast."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    steps, mixing = count(), torch.randn(8, 8) / 8

    def loss() -> Tensor:
        x = torch.randn(32, 8) * 100 ** _share(steps, 300)
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        return F.smooth_l1_loss(out.float(), x @ mixing)

    return model, loss


def growing_weights() -> Made:
    """Weights before a norm grow for ever under Adam without decay: the outputs before the norm grow with them."""
    blocks = [nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(nn.Linear(6, 24), *blocks, nn.Linear(24, 3))
    target = nn.Linear(6, 3)

    def loss() -> Tensor:
        x = torch.randn(32, 6)
        return F.cross_entropy(model(x), target(x).argmax(-1))

    return model, loss


def free_temperature() -> Made:
    """Contrastive, float16, a temperature that nothing bounds: it sharpens while the pairs are told apart better."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 8), nn.Linear(12, 8)
            self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            a, b = F.normalize(self.a(left), dim=-1), F.normalize(self.b(right), dim=-1)
            return self.scale.exp() * a @ b.T

    model, mixing = Pairs(), torch.randn(16, 12)

    def loss() -> Tensor:
        left = torch.randn(24, 16)
        with torch.autocast("cpu", torch.float16):
            logits = model(left, left @ mixing)
        labels = torch.arange(24)
        return (F.cross_entropy(logits.float(), labels) + F.cross_entropy(logits.float().T, labels)) / 2

    return model, loss


def longer_sequences() -> Made:
    """Sums along sequences that grow from 4 to 64 steps: what is added up grows with them."""
    model = nn.ModuleDict(
        {"cell": nn.RNN(4, 24, nonlinearity="relu", batch_first=True), "head": nn.Linear(24, 1)}
    )
    steps = count()

    def loss() -> Tensor:
        x = torch.rand(16, int(4 * 16 ** _share(steps, 300)), 4)
        return F.smooth_l1_loss(model["head"](model["cell"](x)[0][:, -1]), x[..., 0].sum(1, keepdim=True))

    return model, loss


def larger_batches() -> Made:
    """A batch size that doubles from 4 to 256, with a loss that is a sum, as in older code."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    steps = count()

    def loss() -> Tensor:
        x = torch.randn(2 ** int(2 + 6 * _share(steps, 300)), 8)
        return F.mse_loss(model(x), x.sin().sum(1, keepdim=True), reduction="sum")

    return model, loss


def larger_pictures() -> Made:
    """Progressive resizing, 8 to 32 pixels, with features that are added up and not averaged; float16 autocast."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)
    )
    steps = count()

    def loss() -> Tensor:
        size = 8 * 2 ** int(2.99 * _share(steps, 300))
        x = torch.rand(8, 1, size, size)
        with torch.autocast("cpu", torch.float16):
            out = model(x).sum((1, 2, 3))
        return F.smooth_l1_loss(out.float(), x.square().sum((1, 2, 3)))

    return model, loss


def busy_scaler() -> Made:
    """float16 with a scaler that doubles so often that it meets its limit again and again."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    target = nn.Linear(8, 4)

    def loss() -> Tensor:
        x = torch.randn(32, 8)
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        return F.cross_entropy(logits.float(), target(x).argmax(-1))

    return model, loss
