import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ops.value_and_grad import HALF_AND_SINGLE, every_number, value_and_grad
from stayfinite.ops import log1mexp, safe_div, safe_log, safe_pow, safe_sqrt

Unary = Callable[[Tensor], Tensor]


def power(exponent: float) -> tuple[Unary, Unary]:
    return (lambda x: safe_pow(x, exponent)), (lambda x: x.pow(exponent))


PAIRS: dict[str, tuple[Unary, Unary]] = {
    "log": (safe_log, torch.log),
    "sqrt": (safe_sqrt, torch.sqrt),
    "pow 0.6": power(0.6),
    "pow 0.01": power(0.01),
    "pow -0.5": power(-0.5),
    "pow -1": power(-1.0),
    "pow -2": power(-2.0),
    "pow -40": power(-40.0),
}
pairs = pytest.mark.parametrize(("ours", "plain"), PAIRS.values(), ids=PAIRS.keys())


@pairs
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_the_plain_form_fails_at_zero_and_ours_does_not(
    ours: Unary, plain: Unary, dtype: torch.dtype
) -> None:
    zero = torch.zeros(1, dtype=dtype)
    _, plain_grad = value_and_grad(plain, zero)
    value, grad = value_and_grad(ours, zero)
    assert not plain_grad.isfinite()
    assert value.isfinite() and grad.isfinite() and grad != 0
    assert grad.square().isfinite(), "the norm of the gradient must exist too"


@pairs
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_over_every_half_number(ours: Unary, plain: Unary, dtype: torch.dtype) -> None:
    numbers = every_number(dtype)
    numbers = numbers[numbers >= 0]
    value, grad = value_and_grad(ours, numbers)
    assert value.isfinite().all() and grad.isfinite().all()
    plain_value, plain_grad = value_and_grad(plain, numbers)
    fine = plain_value.isfinite() & plain_grad.isfinite()
    assert torch.equal(value[fine], plain_value[fine])
    assert torch.equal(grad[fine], plain_grad[fine])


@pairs
def test_float32_from_the_smallest_subnormal_to_the_largest_number(ours: Unary, plain: Unary) -> None:
    numbers = torch.logspace(-45, 38, 500, dtype=torch.float64).float()
    numbers = torch.cat([numbers, torch.tensor([2.0**-149, torch.finfo(torch.float32).max])])
    value, grad = value_and_grad(ours, numbers)
    assert value.isfinite().all() and grad.isfinite().all()
    plain_value, plain_grad = value_and_grad(plain, numbers)
    fine = plain_value.isfinite() & plain_grad.isfinite()
    assert torch.equal(value[fine], plain_value[fine])
    assert torch.equal(grad[fine], plain_grad[fine])


@pairs
def test_the_value_is_monotonic_across_the_edge(ours: Unary, plain: Unary) -> None:
    numbers = every_number(torch.float16)
    numbers = numbers[numbers > 0].sort().values
    steps = ours(numbers).float().diff()
    rising = plain(torch.tensor(2.0)) > plain(torch.tensor(1.0))
    assert (steps >= 0).all() if rising else (steps <= 0).all()


@pairs
def test_gradients_are_right_to_second_order(ours: Unary, plain: Unary) -> None:
    x = torch.tensor([0.1, 0.7, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ours, (x,))
    assert torch.autograd.gradgradcheck(ours, (x,))


@pairs
def test_the_second_gradient_at_zero_is_finite(ours: Unary, plain: Unary) -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    (first,) = torch.autograd.grad(ours(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.isfinite().all()


@pytest.mark.parametrize("ours", [safe_log, safe_sqrt, power(0.6)[0], power(-1.5)[0]])
def test_outside_the_domain_the_result_stays_nan(ours: Unary) -> None:
    assert ours(torch.tensor([-1.0, float("nan")])).isnan().all()


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0, 3.0])
def test_a_power_without_an_edge_is_the_plain_one(exponent: float) -> None:
    x = torch.tensor([0.0, 0.5, 2.0])
    value, grad = value_and_grad(lambda v: safe_pow(v, exponent), x)
    plain_value, plain_grad = value_and_grad(lambda v: v.pow(exponent), x)
    assert torch.equal(value, plain_value) and torch.equal(grad, plain_grad)


def test_an_overflow_at_a_large_input_is_not_hidden() -> None:
    assert safe_pow(torch.tensor(1e30), 2.0).isinf()
    assert safe_log(torch.tensor(torch.inf)).isinf()


def test_edge_values_as_documented() -> None:
    zero = torch.zeros(1)
    assert safe_log(zero).item() == pytest.approx(-math.log(torch.finfo(torch.float32).max))
    assert safe_sqrt(zero).item() == 0
    assert safe_pow(zero, 0.6).item() == 0
    assert safe_pow(zero, -1.0).item() == pytest.approx(math.sqrt(torch.finfo(torch.float32).max), rel=1e-5)


def test_empty_tensors_pass() -> None:
    empty = torch.zeros(0)
    for ours, _ in PAIRS.values():
        assert ours(empty).shape == (0,)
    assert safe_div(empty, empty).shape == (0,)


finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(settings.get_profile("ops"))
@given(finite32, finite32)
def test_a_quotient_of_finite_numbers_is_finite_and_plain_where_that_is_fine(a: float, b: float) -> None:
    top, bottom = torch.tensor([a], requires_grad=True), torch.tensor([b], requires_grad=True)
    quotient = safe_div(top, bottom)
    ours = (quotient, *torch.autograd.grad(quotient.sum(), (top, bottom)))
    assert all(t.isfinite().all() for t in ours)
    plain_quotient = top / bottom
    plain = (plain_quotient, *torch.autograd.grad(plain_quotient.sum(), (top, bottom)))
    if all(t.isfinite().all() for t in plain):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(ours, plain, strict=True))


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_division_at_its_edges(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    edges = torch.tensor(
        [0.0, -0.0, limits.smallest_normal, -limits.smallest_normal, limits.max, 1.0], dtype=dtype
    )
    top, bottom = (t.reshape(-1) for t in torch.meshgrid(edges, edges, indexing="ij"))
    top, bottom = top.clone().requires_grad_(), bottom.clone().requires_grad_()
    quotient = safe_div(top, bottom)
    gradients = torch.autograd.grad(quotient.sum(dtype=torch.float64), (top, bottom))
    assert quotient.isfinite().all() and all(g.isfinite().all() for g in gradients)
    assert (quotient[bottom == 0] == 0).all()
    assert not (top / bottom).isfinite().all()


def test_division_gradients_and_broadcasting() -> None:
    top = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    bottom = (torch.rand(4, dtype=torch.float64) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(safe_div, (top, bottom))
    assert torch.autograd.gradgradcheck(safe_div, (top, bottom))


def test_division_of_and_by_whole_numbers() -> None:
    counts = torch.tensor([0, 4])
    assert safe_div(torch.tensor([6, 6]), counts).tolist() == [0.0, 1.5]
    assert safe_div(6.0, counts).tolist() == [0.0, 1.5]
    assert safe_div(torch.tensor([6.0, 6.0], dtype=torch.float16), counts).dtype == torch.float16


def test_division_does_not_hide_a_bad_operand() -> None:
    bad = torch.tensor([torch.nan, torch.inf, 1.0])
    assert safe_div(bad, torch.tensor([1.0, 1.0, torch.nan])).isfinite().sum() == 0


def test_log1mexp_keeps_its_digits_where_both_plain_forms_lose_them() -> None:
    x = -torch.logspace(-30, 1.9, 200).double()
    exact = torch.where(x > -0.7, (-x.expm1()).log(), torch.log1p(-x.exp()))
    torch.testing.assert_close(log1mexp(x.float()).double(), exact, rtol=1e-6, atol=0)
    assert torch.log(1 - torch.tensor(-1e-9).exp()).isinf()


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_log1mexp_at_its_edges(dtype: torch.dtype) -> None:
    edges = torch.tensor(
        [0.0, -0.0, -torch.finfo(dtype).smallest_normal, -torch.finfo(dtype).max], dtype=dtype
    )
    value, grad = value_and_grad(log1mexp, edges)
    assert value.isfinite().all() and grad.isfinite().all()
    assert log1mexp(torch.tensor([1.0, torch.nan], dtype=dtype)).isnan().all()


def test_log1mexp_gradients() -> None:
    x = torch.tensor([-0.01, -0.5, -0.8, -5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(log1mexp, (x,))
    assert torch.autograd.gradgradcheck(log1mexp, (x,))
