"""Tensors a user wants to keep an eye on: their range goes into the record of every step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def ranges(observed: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """(min, max) of each, on the device; NaN and Inf show through."""
    found = {}
    for name, tensor in observed.items():
        value = tensor.detach()
        if value.is_complex():
            value = value.abs()
        if value.numel():
            low, high = torch.aminmax(value if value.is_floating_point() else value.float())
            found[name] = (low, high)
    return found
