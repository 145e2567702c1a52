"""Does what failed still learn? Rows that are normalised, and float16 on the way, must not look as if they did not."""

import torch

from stayfinite.prove.expression import _reaches_a_leaf


def scores() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)(torch.randn(5, 4))  # type: ignore[no-any-return]


def row(number: int) -> torch.Tensor:
    where = torch.zeros(5, 3)
    where[number] = 1
    return where


def test_a_whole_row_of_a_softmax_learns_although_its_sum_does_not() -> None:
    assert _reaches_a_leaf(scores().double().softmax(-1), row(4))
    assert _reaches_a_leaf(torch.nn.functional.normalize(scores().double()), row(1))


def test_a_large_value_out_of_float16_learns() -> None:
    assert _reaches_a_leaf(torch.exp((scores().half() + 15).float()), row(4))


def test_what_is_cut_off_does_not() -> None:
    assert not _reaches_a_leaf(torch.exp((scores() + 100).clamp(max=80)), row(4))
    assert not _reaches_a_leaf(scores().detach().requires_grad_().sum() * 0 + torch.zeros(5, 3), row(4))
    assert not _reaches_a_leaf(scores().softmax(-1).sum(-1, keepdim=True).detach().expand(5, 3) * 1.0, row(4))
