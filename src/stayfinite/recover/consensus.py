"""All ranks act together: every rank learns every rank's numbers in one small collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """1 where torch.distributed is not in use."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(numbers: Tensor) -> Tensor:
    """A (ranks, len(numbers)) table with one row a rank, the same on every rank; no transfer to the host."""
    if world_size() == 1:
        return numbers.unsqueeze(0)
    row = numbers.contiguous()
    flat = torch.empty(
        world_size() * row.numel(), dtype=row.dtype, device=row.device
    )  # gloo takes no other shape
    # The older name warns from torch 2.13 on.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    all_gather(flat, row)
    return flat.view(world_size(), -1)


def gathering() -> Callable[[Tensor], Tensor] | None:
    """`gather`, or None where there is nobody to gather from."""
    return gather if world_size() > 1 else None


def union(names: Sequence[str], device: torch.device) -> list[str]:
    """The names that any rank gives, first rank first; the same on every rank."""
    if world_size() == 1:
        return list(names)
    mine = torch.tensor(list("\0".join(names).encode()), dtype=torch.uint8, device=device)
    longest = int(gather(torch.tensor([mine.numel()], device=device)).max())
    if longest == 0:
        return []
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)  # all rows of one length
    padded[: mine.numel()] = mine
    texts = (bytes(row).rstrip(b"\0").decode() for row in gather(padded).tolist())
    return list(dict.fromkeys(name for text in texts if text for name in text.split("\0")))


def rank() -> int:
    """This process's rank; 0 where torch.distributed is not in use."""
    return dist.get_rank() if world_size() > 1 else 0


def any_rank(flag: bool, device: torch.device) -> bool:
    """True on every rank if it is true on one: what one rank sees, all must act on."""
    if world_size() == 1:
        return flag
    return bool(gather(torch.tensor([float(flag)], device=device)).any())
