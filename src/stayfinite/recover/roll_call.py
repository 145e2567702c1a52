"""The roll call: do all ranks have this guard, or does one rank train something of its own?

A model in DistributedDataParallel or of sharded parameters is trained by all ranks. Of any other nobody knows: each
rank may hold a stage of a pipeline, average gradients itself, or train a model that the others do not have. So the
ranks that make a guard at the same line of the script meet at the store; if one does not come, each decides alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stayfinite.shards import is_sharded

SECONDS = 120.0
"""How long a rank waits for the others, once."""
_TOGETHER, _ALONE = "together", "alone"
_made: dict[str, int] = {}


def trained_by_all(models: Iterable[nn.Module]) -> bool:
    """Some model of these is spread over the ranks by torch itself."""
    return any(
        any(isinstance(part, DistributedDataParallel) for part in model.modules())
        or any(is_sharded(parameter) for parameter in nn.Module.parameters(model))
        for model in models
    )


class RollCall:
    """One a guard."""

    def __init__(self, name: str) -> None:
        """`name`: the line that makes the guard; a second one there is another."""
        _made[name] = _made.get(name, 0) + 1
        self.key = f"stayfinite/roll/{name}/{_made[name]}"

    def all_came(self, seconds: float = SECONDS) -> bool:
        """The same answer on every rank that asks."""
        store: Any = dist.distributed_c10d._get_default_store()
        verdict = f"{self.key}/verdict"
        if store.add(self.key, 1) == dist.get_world_size():
            return _agreed(store, verdict, _TOGETHER)
        try:
            store.wait([verdict], timedelta(seconds=seconds))
        except RuntimeError:  # it timed out
            return _agreed(store, verdict, _ALONE)
        return bytes(store.get(verdict)) == _TOGETHER.encode()


def _agreed(store: Any, key: str, wanted: str) -> bool:
    """Whoever is first decides."""
    return bytes(store.compare_set(key, "", wanted)) == _TOGETHER.encode()
