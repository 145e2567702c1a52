"""Changes of whole numbers and masks: token ids, labels, lengths. There is no slope to follow, so they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from stayfinite.probe import tree

_DRAWS = 24
_MOST_IDS = 64


def integer_batches(batch: Any, model: nn.Module, generator: torch.Generator) -> Iterator[tuple[str, Any]]:
    """Batches in which ids, labels or masks are drawn anew from the values they may have."""
    numbers = tree.integers(batch)
    vocabulary = max((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=0)
    for name, tensor in numbers.items():
        least, most = int(tensor.min()), int(tensor.max())
        # Ids of an embedding may be any of its rows; other numbers stay among those that were seen, and zero.
        top = vocabulary - 1 if tensor.dim() > 1 and least >= 0 and most < vocabulary else most
        values = _values(tensor, top)
        for value in values[:_MOST_IDS]:
            yield f"{name}: all {value}", tree.replaced(batch, {name: torch.full_like(tensor, value)})
            if tensor.dim():
                row = tensor.clone()
                row[0] = value
                yield f"{name}: first row {value}", tree.replaced(batch, {name: row})
        for _ in range(_DRAWS):
            chosen = torch.randint(len(values), tensor.shape, generator=generator)
            drawn = torch.tensor(values)[chosen].to(tensor)
            yield f"{name}: drawn anew", tree.replaced(batch, {name: drawn})
    for name, mask in tree.masks(batch).items():
        for _ in range(_DRAWS):
            chance = float(torch.rand((), generator=generator))
            drawn = (torch.rand(mask.shape, generator=generator) < chance).to(mask)
            yield f"{name}: drawn anew", tree.replaced(batch, {name: drawn})
    counted = tree.samples(batch)
    if counted is not None and counted > 1:
        for count in (1, 2):
            yield f"{count} samples", tree.sliced(batch, count, 0, counted)


def _values(tensor: Tensor, top: int) -> list[int]:
    seen = sorted(set(tensor.flatten().tolist()))
    least = min(seen)
    more = range(max(least, 0), top + 1) if top - least < 4096 else [0, top]
    return list(dict.fromkeys([*seen[: _MOST_IDS // 2], *more]))
