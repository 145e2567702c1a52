"""Sharded tensors and optimizers: the part that this rank holds. Plain ones are their own part."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_PLAIN = (Tensor, torch.nn.Parameter)


def is_torch_class(tensor: Tensor) -> bool:
    """A tensor or a parameter of torch's own class."""
    return type(tensor) in _PLAIN


def is_sharded(tensor: Tensor) -> bool:
    """A DTensor: fully_shard, tensor parallelism. Asked by what it can do, so that nothing has to be imported."""
    if is_torch_class(tensor):
        return False
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def local(tensor: Tensor) -> Tensor:
    """This rank's part, in the same memory: what is written into it is written into the tensor."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        part: Tensor = sharded.to_local()
    return part


def state_of(optimizer: Optimizer) -> MutableMapping[Any, Any]:
    """What an optimizer keeps here: a ZeroRedundancyOptimizer has this rank's share in an optimizer inside of it."""
    inner = getattr(optimizer, "optim", None)
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer" and isinstance(inner, Optimizer):
        return inner.state
    return optimizer.state


def holders(tensor: Tensor, ranks: int) -> int | None:
    """How many of so many ranks hold each part of it, all of which train one model; None where that is not known."""
    if not is_sharded(tensor):
        return ranks
    sharded: Any = tensor
    parts = 1
    for size, placement in zip(sharded.device_mesh.shape, sharded.placements, strict=True):
        if placement.is_shard() or type(placement).__name__ == "_StridedShard":
            parts *= size
        elif not placement.is_replicate():
            return None  # sums that nobody has added up
    return ranks // parts


def is_spread_over(tensor: Tensor, ranks: int) -> bool:
    """All of so many ranks have a place in its mesh, so that they train one model."""
    sharded: Any = tensor
    return is_sharded(tensor) and bool(sharded.device_mesh.size() == ranks)


def whole(tensor: Tensor) -> Tensor:
    """A number that is spread over the ranks, as every rank's own: all ranks must ask."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    full: Tensor = sharded.full_tensor()
    return full
