"""Weights that sum to one, also when all of them are zero."""

import torch
from torch import Tensor

from stayfinite.ops.eps import tiny
from stayfinite.ops.mask import keep_mask
from stayfinite.ops.precision import widen


def normalize_weights(weights: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """Non-negative weights divided by their sum; where the sum is 0 they become uniform, with zero gradient.

    With a ``mask`` only the kept weights count (a NaN in another one does not matter) and the others are 0;
    if nothing is kept, all are 0.

    >>> normalize_weights(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]])
    """
    values = widen(weights)
    keep = torch.ones_like(values, dtype=torch.bool) if mask is None else keep_mask(mask)
    values = torch.where(keep, values, 0.0)
    keep = keep.expand_as(values)
    total = values.sum(dim, keepdim=True)
    empty = total.abs() < tiny(values)
    uniform = keep / keep.sum(dim, keepdim=True).clamp(min=1)
    return torch.where(empty, uniform, values / torch.where(empty, 1.0, total)).to(weights.dtype)
