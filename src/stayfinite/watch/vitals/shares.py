"""Shares of zeros and of subnormal numbers in a half tensor, counted on a sample of its elements."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
_MOST = 65_536
_LARGEST_SUBNORMAL = {
    dtype: torch.finfo(dtype).tiny - torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for dtype in HALF
}


class Counts(NamedTuple):
    # elements that are not 0, and elements that are not below the normal numbers
    scalars: tuple[Tensor, Tensor]
    numel: int


def nonzero_and_normal(tensor: Tensor) -> Counts:
    """Of every n-th element where there are many."""
    values = tensor.detach()
    if tensor.numel() > _MOST and tensor.is_contiguous():
        values = values.view(-1)[:: -(-tensor.numel() // _MOST)]
    normal = F.hardshrink(values, _LARGEST_SUBNORMAL[tensor.dtype])
    return Counts((torch.count_nonzero(values), torch.count_nonzero(normal)), values.numel())
