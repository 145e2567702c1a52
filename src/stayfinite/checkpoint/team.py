"""Several processes, several machines: under torchrun each rank measures a part, and all get one verdict."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stayfinite.readers.checkpoint import measure_all
from stayfinite.readers.checkpoint.measure import Measured
from stayfinite.readers.checkpoint.sort_state import Sorted


class RankTeam:
    """The ranks of a torchrun launch, talking through torch.distributed (gloo)."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def first_trouble(self, trouble: str | None) -> str | None:
        """The first rank that could not read the file speaks for all."""
        for rank, text in enumerate(self._gather(trouble)):
            if text:
                return f"{text} (on rank {rank})"
        return None

    def measure(self, state: Sorted, jobs: int, advance: Callable[[int], None]) -> list[Measured]:
        """Each rank measures its share; the shares are put together on every rank."""
        owner = shares([tensor.nbytes for tensor in state.checkpoint.tensors], self.size)
        mine = measure_all(state, jobs=jobs, advance=advance, only=lambda index: owner[index] == self.rank)
        gathered = self._gather({index: mine[index] for index, rank in enumerate(owner) if rank == self.rank})
        results: list[Measured] = [None] * len(owner)
        for part in gathered:
            for index, result in part.items():
                results[index] = result
        return results

    def close(self) -> None:
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()

    def _gather(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value)
        return everyone


def launched_by_torchrun() -> bool:
    """More than one process was started together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and "MASTER_ADDR" in os.environ


def shares(sizes: list[int], ranks: int) -> list[int]:
    """Which rank takes which item: the largest first, each to the rank with least to do. The same everywhere."""
    load = [0] * ranks
    owner = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rank = min(range(ranks), key=lambda r: (load[r], r))
        owner[index] = rank
        load[rank] += sizes[index] + 4096  # a small tensor costs a system call too
    return owner
