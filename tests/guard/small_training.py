"""A small training with everything in it, unguarded: what a guarded one is compared with, bit for bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from trials.bits import bits, differing

from stayfinite import Guard

NAN, INF = math.nan, math.inf


def batches(count: int, seed: int = 0, width: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, width, generator=generator) for _ in range(count)]


def spoiled(batch: Tensor, value: float = NAN) -> Tensor:
    batch = batch.clone()
    batch[0, 0] = value
    return batch


def momentum(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


class Training:
    """Batch norm (buffers), momentum, a schedule by step and an average; `dropout` draws random numbers."""

    def __init__(self, make_optimizer: Callable[[Any], Optimizer] = momentum, dropout: float = 0.0) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.model = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 1)
        )
        self.optimizer = make_optimizer(self.model.parameters())
        self.scheduler = StepLR(self.optimizer, 2, 0.8)
        self.own_step = self.optimizer.step
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    def guard(self, folder: Path, **options: Any) -> Guard:
        options = {"quiet": True, "run_dir": folder, **options}
        return Guard(self.model, self.optimizer, self.scheduler, ema=self.average, **options)

    def loss(self, x: Tensor) -> Tensor:
        return self.model(x).square().mean()

    def body(self, x: Tensor) -> None:
        """What a user's loop does with a batch."""
        self.optimizer.zero_grad()
        self.loss(x).backward()
        self.optimizer.step()
        self.advance()

    def advance(self) -> None:
        self.scheduler.step()
        self.average.update_parameters(self.model)

    def train(self, data: Iterable[Tensor]) -> Training:
        for x in data:
            self.body(x)
        return self

    def bits(self, **options: Any) -> dict[str, Any]:
        return bits(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            average=self.average,
            **options,
        )

    @property
    def has_gradients(self) -> bool:
        return any(p.grad is not None and bool(p.grad.any()) for p in self.model.parameters())


def assert_same(found: dict[str, Any], plain: Training, *, generators: bool = True) -> None:
    """`found` are the bits of a guarded run, taken before the plain one was trained: generators are global."""
    other = plain.bits()
    names = [n for n in differing(found, other) if generators or not n.startswith("random.")]
    assert not names, f"differs in {names}"
