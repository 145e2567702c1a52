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


def spread_over(tensor: Tensor, ranks: int) -> bool:
    """Each of so many ranks holds another part of it: the norm of the whole is the norm of the parts' norms."""
    if not is_sharded(tensor):
        return False
    sharded: Any = tensor
    mesh = sharded.device_mesh
    return bool(mesh.ndim == 1 and mesh.size() == ranks and sharded.placements[0].is_shard())


def whole(tensor: Tensor) -> Tensor:
    """A number that is spread over the ranks, as every rank's own: all ranks must ask."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    full: Tensor = sharded.full_tensor()
    return full
