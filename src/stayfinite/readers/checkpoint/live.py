"""Tensors that are in memory: the same statistics for a state that is about to be saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stayfinite.findings.subjects.checkpoint import Statistics
from stayfinite.readers.checkpoint.measure import Measured, add_counts, bad_mask, comparable, unravel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class LiveTensor:
    """A tensor of the running process, looked at where it is (no copy, no move between devices)."""

    tensor: torch.Tensor

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def numel(self) -> int:
        return self.tensor.numel()

    @property
    def nbytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()

    @property
    def identity(self) -> tuple[Any, ...]:
        if self.tensor.layout != _strided() or self.tensor.numel() == 0:
            return ("live", id(self.tensor))
        return (
            "live",
            str(self.tensor.device),
            self.tensor.data_ptr(),
            self.shape,
            self.tensor.stride(),
            self.dtype,
        )


def _strided() -> Any:
    import torch

    return torch.strided


def plain_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor as dense local tensors: a sharded one by its local part, a sparse one by its values."""
    import torch

    local = getattr(tensor, "to_local", None)
    if callable(local):
        return plain_parts(local())
    tensor = tensor.detach()
    if tensor.is_quantized:
        parts = {"integers": tensor.int_repr()}
        if tensor.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
            parts["scale"] = tensor.q_per_channel_scales()
        return parts
    if tensor.layout == torch.sparse_coo:
        return {"values": tensor._values()}
    return {"": tensor} if tensor.layout == torch.strided else {"values": tensor.values()}


def measure_live(leaves: Sequence[LiveTensor]) -> list[Measured]:
    """Statistics of each tensor; one transfer per device and dtype however many tensors there are."""
    import torch

    results: list[Measured] = [None] * len(leaves)
    waiting: dict[tuple[Any, Any], list[tuple[int, torch.Tensor]]] = {}
    for index, leaf in enumerate(leaves):
        tensor = leaf.tensor
        if tensor.device.type == "meta" or tensor.dtype in _unordered():
            continue
        results[index] = Statistics()
        if tensor.numel():
            bounds = torch.stack(torch.aminmax(comparable(tensor)))
            waiting.setdefault((tensor.device, bounds.dtype), []).append((index, bounds))
    for entries in waiting.values():
        ranges = torch.stack([bounds for _, bounds in entries]).tolist()
        for (index, _), (low, high) in zip(entries, ranges, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                results[index] = Statistics(low, high)
            else:
                results[index] = count_live(leaves[index].tensor)
    return results


def _unordered() -> set[Any]:
    """Types torch cannot reduce over; none of them can hold a NaN."""
    import torch

    names = ("bool", "uint16", "uint32", "uint64")
    return {getattr(torch, name) for name in names if hasattr(torch, name)}


def count_live(tensor: torch.Tensor) -> Statistics:
    """Exact counts and the first bad index of a tensor in memory."""
    total = Statistics(zeros=0, negative=0)
    add_counts(total, tensor)
    if total.bad:
        flat = bad_mask(tensor).reshape(-1)
        first = int(flat.nonzero()[0])
        total.first_bad = unravel(first, tuple(tensor.shape))
    return total
