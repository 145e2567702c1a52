import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ops.value_and_grad import HALF_AND_SINGLE, value_and_grad
from stayfinite.ops import log_sinkhorn, sinkhorn


def plain(log_alpha: Tensor, iterations: int = 20) -> Tensor:
    matrix = log_alpha.exp()
    for _ in range(iterations):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / matrix.sum(-2, keepdim=True)
    return matrix


def test_it_equals_the_plain_form_where_that_is_fine() -> None:
    logits = torch.randn(3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(sinkhorn(logits), plain(logits))
    torch.testing.assert_close(log_sinkhorn(logits, 5), plain(logits, 5).log())


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_rows_and_columns_sum_to_one(size: int) -> None:
    matrix = sinkhorn(torch.randn(5, size, size))
    ones = torch.ones(5, size)
    torch.testing.assert_close(matrix.sum(-2), ones)
    torch.testing.assert_close(matrix.sum(-1), ones, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_large_logits_overflow_the_plain_form_and_not_ours(dtype: torch.dtype) -> None:
    logits = torch.tensor([[100.0, 0.0, 0.0], [0.0, 100.0, 0.0], [0.0, 0.0, 100.0]], dtype=dtype)
    assert plain(logits).isnan().any()
    value, grad = value_and_grad(sinkhorn, logits)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, torch.eye(3))
    assert grad.isfinite().all()


@settings(settings.get_profile("ops"))
@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=9, max_size=9))
def test_any_finite_logits_give_a_finite_matrix(entries: list[float]) -> None:
    value, grad = value_and_grad(sinkhorn, torch.tensor(entries).reshape(3, 3))
    assert value.isfinite().all() and grad.isfinite().all()
    assert (value >= 0).all() and (value <= 1.0001).all()


def test_forbidden_entries_stay_zero() -> None:
    infinity = torch.inf
    logits = torch.tensor([[0.0, -infinity, 1.0], [-infinity, 2.0, 0.0], [-infinity] * 3])
    value, grad = value_and_grad(sinkhorn, logits)
    assert value.isfinite().all() and grad.isfinite().all()
    assert (value[logits == -infinity] == 0).all()


def test_gradients() -> None:
    logits = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: sinkhorn(v, 4), (logits,))
    assert torch.autograd.gradgradcheck(lambda v: sinkhorn(v, 4), (logits,))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"square, got the shape \(2, 3\)"):
        sinkhorn(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="square"):
        sinkhorn(torch.zeros(3))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        sinkhorn(torch.zeros(2, 2), iterations=0)
    assert sinkhorn(torch.zeros(0, 2, 2)).shape == (0, 2, 2)
