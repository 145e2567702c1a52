"""The way of numbers from the device to the host: one transfer for all of them, or one that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stayfinite.watch.outside_autocast import outside_autocast


def pack(scalars: Sequence[Tensor]) -> Tensor:
    """One vector out of 0-d tensors of any real dtype and device, on the first one's device.

    float32, unless one of them is float64: its value may lie beyond float32's range.
    """
    wide = any(scalar.dtype is torch.float64 for scalar in scalars)
    dtype = torch.float64 if wide else torch.float32
    device = scalars[0].device
    with torch.no_grad():
        return torch.stack([scalar.to(device=device, dtype=dtype) for scalar in scalars])


class Parcel:
    """0-d tensors of any dtype and device as one vector in few ops; `unpacked` gives the numbers in their old order."""

    @outside_autocast
    def __init__(self, scalars: Sequence[Tensor]) -> None:
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for index, scalar in enumerate(scalars):
            alike.setdefault((scalar.device, scalar.dtype), []).append(index)
        self._order = [index for indices in alike.values() for index in indices]
        self.vector: Tensor | None = None
        if not scalars:
            return
        device = scalars[0].device
        wide = torch.float32 if device.type == "mps" else torch.float64  # mps knows no float64
        with torch.no_grad():
            parts = [torch.stack([scalars[i] for i in indices]) for indices in alike.values()]
            moved = [part.to(device=device, dtype=wide) for part in parts]
            self.vector = moved[0] if len(moved) == 1 else torch.cat(moved)

    def unpacked(self, numbers: Sequence[float]) -> list[float]:
        found = [0.0] * len(self._order)
        for index, number in zip(self._order, numbers, strict=True):
            found[index] = number
        return found


class Fetch:
    """A vector under way to the host. `read` waits for it; a step later there is nothing to wait for."""

    def __init__(self, numbers: Tensor) -> None:
        self._event: torch.Event | None = None
        if numbers.device.type == "cuda":
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._event = torch.Event("cuda")
            self._event.record()
        else:
            self._host = numbers

    def read(self) -> list[float]:
        """The numbers."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers
