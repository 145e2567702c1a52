"""All that a training run consists of, as plain bits under readable names, and where two runs differ."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def bits(*, generators: bool = True, gradients: bool = False, **parts: Any) -> dict[str, Any]:
    """Name -> value of everything in these modules, optimizers, schedulers, scalers; with the random generators."""
    found = {name: value for part, owner in parts.items() for name, value in _flatten(part, owner, gradients)}
    if generators:
        found["random.torch"] = torch.get_rng_state()
        found["random.python"] = random.getstate()
        found["random.numpy"] = repr(np.random.get_state())
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names under which the two do not hold the same bits."""
    missing = sorted(one.keys() ^ other.keys())
    return missing + [name for name in one if name in other and not _same(one[name], other[name])]


def finite(found: Mapping[str, Any]) -> bool:
    """Is every number among these bits finite? Masks of -inf aside."""
    tensors = [v for name, v in found.items() if isinstance(v, Tensor) and not name.endswith("mask")]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())


def _flatten(name: str, value: Any, gradients: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        for key, parameter in value.named_parameters():
            yield f"{name}.{key}", _copy(parameter)
            if gradients:
                yield f"{name}.{key}.grad", None if parameter.grad is None else _copy(parameter.grad)
        for key, buffer in value.named_buffers():
            yield f"{name}.{key}", _copy(buffer)
    elif hasattr(value, "state_dict"):
        yield from _flatten(name, value.state_dict(), gradients)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}", item, gradients)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flatten(f"{name}.{index}", item, gradients)
    else:
        yield name, _copy(value) if isinstance(value, Tensor) else value


def _copy(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().clone()
    return tensor.to_dense() if tensor.layout is not torch.strided else tensor


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    return type(one) is type(other) and (one == other or repr(one) == repr(other))  # NaN is the same as NaN
