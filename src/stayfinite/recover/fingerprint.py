"""The fingerprint of weights: replicas with the same bits have the same, and one changed bit changes it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from stayfinite.shards import is_sharded

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = 0x9E3779B97F4A7C15  # spreads the place of a tensor over 64 bits


@torch.no_grad()
def fingerprint(parameters: Iterable[Tensor]) -> int:
    """Sums of the bits as whole numbers, tensor by tensor; one transfer a device. Shards are left out."""
    sums: dict[torch.device, list[Tensor]] = {}
    for number, parameter in enumerate(parameters):
        if is_sharded(parameter) or parameter.is_meta or parameter.layout is not torch.strided:
            continue
        bits = parameter.detach().contiguous().view(-1)
        bits = torch.view_as_real(bits) if bits.is_complex() else bits
        kind = _AS_INTEGERS.get(bits.element_size())
        if kind is None or not bits.numel():
            continue
        bits = bits.view(-1).view(kind)
        if bits.nbytes % 8 == 0:  # eight bytes at a time are many times as fast
            aligned = bits.storage_offset() * bits.element_size() % 8 == 0
            bits = (bits if aligned else bits.clone()).view(torch.int64)
        total = bits.sum(dtype=torch.int64)
        place = (_ODD * (2 * number + 1)) % 2**63  # odd, so that no bit is lost
        sums.setdefault(bits.device, []).append(total * (place | 1))
    whole = sum(int(torch.stack(parts).sum()) for parts in sums.values())
    return (whole + 2**63) % 2**64 - 2**63
