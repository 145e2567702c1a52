"""The tensors of a batch, by name: which are inputs, masks, whole numbers; and the same batch with some replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from stayfinite.watch.finite import tensors_in


def named(batch: Any) -> dict[str, Tensor]:
    """Every tensor of the batch."""
    return dict(tensors_in(batch))


def inputs(batch: Any) -> dict[str, Tensor]:
    """The float tensors that are no masks."""
    return {
        name: t
        for name, t in named(batch).items()
        if t.is_floating_point() and t.numel() and not _is_mask(name, t)
    }


def scales(batch: Any) -> set[str]:
    """Inputs of one positive number a sample: noise levels, weights, lengths. Zero is no value of theirs."""
    count = samples(batch)
    return {
        name for name, t in inputs(batch).items() if t.dim() and t.numel() == count and bool((t > 0).all())
    }


def masks(batch: Any) -> dict[str, Tensor]:
    """Tensors of two values: bool, or called a mask, or floats that are all 0 or 1 with both present or so called."""
    return {
        name: tensor for name, tensor in named(batch).items() if tensor.numel() and _is_mask(name, tensor)
    }


def integers(batch: Any) -> dict[str, Tensor]:
    """Tensors of whole numbers that are no masks: token ids, labels, lengths."""
    return {
        name: tensor
        for name, tensor in named(batch).items()
        if tensor.numel() and not _is_mask(name, tensor) and _is_integer(tensor)
    }


def _is_integer(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32, torch.int16)


def _is_mask(name: str, tensor: Tensor) -> bool:
    if tensor.dtype is torch.bool:
        return True
    called = any(word in name.lower() for word in ("mask", "valid"))
    return called and not tensor.is_complex() and bool(((tensor == 0) | (tensor == 1)).all())


def replaced(batch: Any, values: Mapping[str, Tensor], name: str = "batch") -> Any:
    """The same structure with other tensors in it; what is not named stays."""
    if isinstance(batch, Tensor):
        return values.get(name, batch)
    if isinstance(batch, Mapping):
        new = {key: replaced(item, values, f"{name}[{key!r}]") for key, item in batch.items()}
        if type(batch) is dict:
            return new
        try:
            again: Any = copy.copy(batch)
            for key, item in new.items():
                again[key] = item
            return again
        except (TypeError, KeyError):
            return new
    if isinstance(batch, (list, tuple)):
        items = [replaced(item, values, f"{name}[{i}]") for i, item in enumerate(batch)]
        if isinstance(batch, list):
            return items
        return type(batch)(*items) if hasattr(batch, "_fields") else tuple(items)
    fields = getattr(batch, "__dataclass_fields__", None)
    if fields is not None:
        made = copy.copy(batch)
        for field in fields:
            object.__setattr__(made, field, replaced(getattr(batch, field, None), values, f"{name}.{field}"))
        return made
    return batch


def changed(batch: Any, change: Callable[[Tensor], Tensor], which: Mapping[str, Tensor]) -> Any:
    """The batch with `change` applied to the tensors given."""
    return replaced(batch, {name: change(tensor) for name, tensor in which.items()})


def copied(batch: Any) -> Any:
    """Its own tensors: what the user's code writes into a batch must not reach the user's own."""
    return changed(batch, lambda tensor: tensor.detach().clone(), named(batch))


def samples(batch: Any) -> int | None:
    """How many samples the batch holds: the leading size that most of its tensors share."""
    sizes = [tensor.shape[0] for tensor in named(batch).values() if tensor.dim()]
    return max(set(sizes), key=sizes.count) if sizes else None


def sliced(batch: Any, length: int, dim: int, size: int) -> Any:
    """Every tensor that has `size` at `dim`, cut to its first `length`."""
    found = {n: t for n, t in named(batch).items() if t.dim() > dim and t.shape[dim] == size}
    return changed(batch, lambda tensor: tensor.narrow(dim, 0, length), found)
