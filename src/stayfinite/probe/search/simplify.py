"""A failing batch made smaller and rounder for as long as it still fails: a test is read by a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from stayfinite.probe import tree


def simplified(batch: Any, original: Any, fails: Callable[[Any], bool], ends: float) -> Any:
    """Fewer samples, the other inputs as they were, round numbers; each kept only if the batch still fails."""
    batch = _fewer_samples(batch, fails, ends)
    shapes = {name: tensor.shape for name, tensor in tree.named(original).items()}
    for name, tensor in tree.named(batch).items():
        if tensor.shape == shapes.get(name):
            back = tree.replaced(batch, {name: tree.named(original)[name]})
            if time.monotonic() < ends and fails(back):
                batch = back
                continue
        if tensor.is_floating_point():
            for candidate in _rounder(tensor):
                if time.monotonic() > ends:
                    return batch
                trial = tree.replaced(batch, {name: candidate})
                if fails(trial):
                    batch = trial
                    break
    return batch


def _fewer_samples(batch: Any, fails: Callable[[Any], bool], ends: float) -> Any:
    count = tree.samples(batch)
    if count is None:
        return batch
    rows = {n: t for n, t in tree.named(batch).items() if t.dim() and t.shape[0] == count}
    for index in range(min(count, 64)):
        if count < 2 or time.monotonic() > ends:
            break
        for size in (1, 2):
            small = tree.replaced(batch, {n: t[index : index + size] for n, t in rows.items()})
            if size <= count - index and fails(small):
                return small
    return batch


def _rounder(tensor: Tensor) -> Iterator[Tensor]:
    """Simpler values, the simplest first."""
    yield torch.zeros_like(tensor)
    for value in (tensor.min(), tensor.max()):
        yield torch.full_like(tensor, float(value))
    for digits in (0, 1, 2, 3):
        if float(tensor.abs().max()) < 1e6:
            yield torch.round(tensor, decimals=digits)
