"""Logarithms that are kept along the values: whatever they pass, the same numbers, and none that overflows."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stayfinite.remedies.kept_logarithms import KeptLogarithms

torch.manual_seed(0)
WEIGHTS = torch.rand(4, 4, dtype=torch.float64)
MASK = WEIGHTS > 0.4


def accumulated(x: Tensor) -> Tensor:
    total = torch.zeros(4, dtype=x.dtype)
    for column in range(4):
        total = total + torch.exp(x[:, column])
    return total


def in_place(x: Tensor) -> Tensor:
    total = torch.zeros(4, dtype=x.dtype)
    total += torch.exp(x[:, 0])
    total += torch.exp(x[:, 1])
    return total


def transport(cost: Tensor) -> Tensor:
    """Sinkhorn: what vanishes in one factor of a product is Inf in the other."""
    kernel = torch.exp(-cost.abs())
    weights = torch.full((4,), 0.25, dtype=cost.dtype)
    right = torch.ones(4, dtype=cost.dtype)
    for _ in range(5):
        left = weights / (kernel @ right)
        right = weights / (kernel.T @ left)
    return (left[:, None] * kernel * right * cost.abs()).sum()


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: torch.log(torch.exp(x).sum(1)),
    "sum of all": lambda x: x.exp().sum().log(),
    "kept dim": lambda x: torch.log(torch.sum(torch.exp(x), dim=(0, 1), keepdim=True)),
    "mean": lambda x: torch.log(torch.exp(x).mean(dim=1)),
    "running sum": lambda x: torch.exp(x).cumsum(0).log(),
    "masked": lambda x: torch.log((torch.exp(x) * MASK).sum(1) + 1e-12),
    "filled": lambda x: torch.log(torch.exp(x).masked_fill(MASK, 0.0).sum()),
    "filled in place": lambda x: torch.log(torch.exp(x).clone().masked_fill_(MASK, 0.0).sum()),
    "chosen": lambda x: torch.where(MASK, torch.exp(x), 0.0).sum().log(),
    "weighted": lambda x: torch.log(WEIGHTS @ torch.exp(x)),
    "einsum": lambda x: torch.einsum("ij,kj->ki", WEIGHTS, torch.exp(x)).log2(),
    "two": lambda x: torch.log(torch.exp(x[0]) + torch.exp(x[1])),
    "accumulated": lambda x: torch.log(accumulated(x)),
    "in place": lambda x: torch.log(in_place(x)),
    "joined": lambda x: torch.log(torch.cat([torch.exp(x), torch.exp(-x)], 1).sum(1)),
    "stacked": lambda x: torch.log(torch.stack([torch.exp(x), torch.exp(-x)]).sum(0)),
    "one plus": lambda x: torch.log1p(torch.exp(x).sum(1)),
    "ratio": lambda x: torch.exp(x) / torch.exp(x).sum(1, keepdim=True),
    "transport": transport,
    "chosen ratio": lambda x: -torch.log(torch.exp(x).diagonal() / torch.exp(x).sum(1)),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_same_numbers_and_gradients(name: str) -> None:
    form = FORMS[name]
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    plain = form(x)
    with KeptLogarithms():
        kept = form(x)
    torch.testing.assert_close(kept, plain)
    first, second = (torch.autograd.grad(value.sum(), x)[0] for value in (plain, kept))
    torch.testing.assert_close(second, first)
    large = (x.detach().abs() * 3e3).requires_grad_()
    assert not bool(form(large).isfinite().all())
    with KeptLogarithms():
        assert bool(form(large).isfinite().all())


def test_what_is_written_into_is_not_what_was_known() -> None:
    x = torch.randn(3)
    with KeptLogarithms():
        e = torch.exp(x)
        e += -0.5
        torch.testing.assert_close(torch.log(e.abs()), torch.log((torch.exp(x) - 0.5).abs()))
        e = torch.exp(x)
        e.mul_(torch.tensor([-1.0, 1.0, 1.0]))
        assert bool(torch.log(e)[0].isnan())
        e = torch.exp(x)
        e[0] = 7.0
        torch.testing.assert_close(torch.log(e)[0], torch.tensor(7.0).log())
        e = torch.exp(x).clamp_(max=0.5)
        assert bool((torch.log(e) <= -0.69).all())
        e = torch.exp(x)
        e[1:].zero_()  # through a view
        assert bool((torch.log(e)[1:] == -math.inf).all())
        p = torch.sigmoid(x)
        p.view(3).fill_(0.25)
        torch.testing.assert_close(torch.log(1 - p), torch.full((3,), math.log(0.75)))
        e = torch.exp(x)
        part = e[:2]
        e.fill_(1.0)
        assert torch.equal(torch.log(part), torch.zeros(2))
        with torch.inference_mode():
            torch.testing.assert_close(torch.log(torch.exp(x)), x)


def test_nothing_else_is_touched() -> None:
    x = torch.randn(3)
    with KeptLogarithms():
        assert torch.equal(torch.log(x.abs()), torch.log(x.abs()).clone())
        assert torch.equal(torch.exp(x) * x, torch.exp(x).mul(x)) and torch.equal(x / 2, x * 0.5)


def test_a_gradient_that_only_passes_tiny_numbers_goes_back_through_logarithms() -> None:
    """Scalings of 1e33 whose products are ordinary numbers: finite, and so must be what is learnt from them."""
    cost = torch.rand(8, 8, dtype=torch.float64) * 4
    cost[:, 0] += 3.0  # its sum of exponentials is about 1e-30

    def plan(cost: Tensor) -> Tensor:
        kernel = torch.exp(-cost / 0.05)
        left = torch.ones(8, dtype=cost.dtype)
        for _ in range(10):
            right = 0.125 / (kernel.T @ left)
            left = 0.125 / (kernel @ right)
        return (left[:, None] * kernel * right[None, :] * cost).sum()

    exact = cost.clone().requires_grad_()
    (expected,) = torch.autograd.grad(plan(exact), exact)
    narrow = cost.float().requires_grad_()
    (plain,) = torch.autograd.grad(plan(narrow), narrow)
    assert not bool(plain.isfinite().all())
    with KeptLogarithms(also_finite=True):
        (found,) = torch.autograd.grad(plan(narrow), narrow)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)
