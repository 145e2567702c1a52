"""The fingerprint of weights: the same bits have the same, wherever they lie in memory; one bit changes it."""

from __future__ import annotations

import pytest
import torch

from stayfinite.recover.fingerprint import fingerprint

KINDS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.complex64,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 8, 33])
def test_one_changed_bit_changes_it(kind: torch.dtype, size: int) -> None:
    tensor = (torch.arange(size) + 1).to(kind)
    before = fingerprint([tensor])
    for byte in range(tensor.nbytes):
        changed = tensor.clone()
        changed.view(torch.uint8)[byte] ^= 1 << byte % 8
        assert fingerprint([changed]) != before


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_lies_in_memory_does_not_matter(kind: torch.dtype) -> None:
    tensor = torch.randn(6, 4).to(kind)
    moved = torch.zeros(25, dtype=kind)[1:].view(6, 4)
    moved.copy_(tensor)
    turned = tensor.t().contiguous().t()
    assert fingerprint([tensor]) == fingerprint([moved]) == fingerprint([turned])


def test_the_order_of_tensors_matters() -> None:
    one, two = torch.randn(4), torch.randn(4)
    assert fingerprint([one, two]) != fingerprint([two, one])
