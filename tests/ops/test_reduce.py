import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.value_and_grad import HALF_AND_SINGLE, value_and_grad
from stayfinite.ops import masked_log_softmax, masked_mean, masked_softmax, normalize_weights

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dim", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_mean_over_everything_is_the_plain_mean(dim: int | tuple[int, ...] | None, keepdim: bool) -> None:
    x = torch.randn(3, 4)
    every = torch.ones(3, 4, dtype=torch.bool)
    torch.testing.assert_close(masked_mean(x, every, dim, keepdim), x.mean(dim, keepdim=keepdim))


def test_what_is_masked_leaks_neither_into_value_nor_gradient() -> None:
    x = torch.tensor([[1.0, NAN, 3.0], [INF, 5.0, -INF]])
    mask = torch.tensor([[True, False, True], [False, True, False]])
    value, grad = value_and_grad(lambda v: masked_mean(v, mask, dim=1), x)
    assert value.tolist() == [2.0, 5.0]
    assert grad.tolist() == [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]
    plain, _ = value_and_grad(lambda v: (v * mask).sum(1) / mask.sum(1), x)
    assert plain.isnan().all()


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_the_mean_of_nothing_is_zero(dtype: torch.dtype) -> None:
    x = torch.ones(2, 3, dtype=dtype)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    value, grad = value_and_grad(lambda v: masked_mean(v, nothing), x)
    assert value == 0 and value.dtype == dtype and (grad == 0).all()
    _, plain_grad = value_and_grad(lambda v: (v * nothing).sum() / nothing.sum(), x)
    assert plain_grad.isnan().all()
    assert masked_mean(torch.zeros(0), torch.zeros(0, dtype=torch.bool)) == 0


def test_the_sum_of_half_values_does_not_overflow() -> None:
    x = torch.full((8,), 60000.0, dtype=torch.float16)
    assert masked_mean(x, torch.ones(8, dtype=torch.bool)).item() == pytest.approx(60000.0, rel=1e-3)


def test_masks_broadcast_and_may_be_whole_numbers() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert masked_mean(x, torch.tensor([1, 0])).item() == 2.0
    assert masked_mean(x, torch.tensor([[0], [1]]), dim=0).tolist() == [3.0, 4.0]


def test_weights_are_not_a_mask() -> None:
    with pytest.raises(TypeError, match=r"pass mask.bool\(\)"):
        masked_mean(torch.ones(2), torch.tensor([0.5, 1.0]))


def test_integers_have_no_mean() -> None:
    with pytest.raises(TypeError, match=r"convert it with .float\(\) first"):
        masked_mean(torch.tensor([1, 2]), torch.tensor([True, True]))


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("function", [masked_softmax, masked_log_softmax])
def test_softmax_of_awkward_rows(function: object, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    logits = torch.tensor(
        [
            [1.0, 2.0, NAN],
            [INF, NAN, 3.0],
            [1.0, 1.0, 1.0],
            [-INF, -INF, -INF],
            [largest, -largest, -largest],
        ],
        dtype=dtype,
    )
    mask = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 1]]).bool()
    assert callable(function)
    value, grad = value_and_grad(lambda v: function(v, mask), logits)
    assert value.dtype == dtype
    assert value.isfinite().all() and grad.isfinite().all()
    assert (value[~mask] == 0).all() and (grad[~mask] == 0).all()
    assert (value[2:4] == 0).all() and (grad[2:4] == 0).all()
    probabilities = value if function is masked_softmax else value.exp() * mask
    half = torch.tensor([0.0, 0.5, 0.5], dtype=dtype)
    torch.testing.assert_close(probabilities[4], half)
    torch.testing.assert_close(probabilities[1], torch.tensor([0.0, 0.0, 1.0], dtype=dtype))


def test_the_plain_softmax_of_an_empty_row_is_nan() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    plain = torch.zeros(2, 2).masked_fill(~mask, -INF).softmax(-1)
    assert plain[1].isnan().all()
    assert (plain * mask)[1].isnan().all(), "and multiplying by the mask afterwards does not help"


def test_a_finite_fill_value_would_share_with_masked_positions() -> None:
    logits = torch.tensor([0.0, torch.finfo(torch.float32).min])
    mask = torch.tensor([False, True])
    assert logits.masked_fill(~mask, torch.finfo(torch.float32).min).softmax(-1)[0] == 0.5
    assert masked_softmax(logits, mask).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("function", [masked_softmax, masked_log_softmax])
def test_softmax_gradients(function: object) -> None:
    assert callable(function)
    logits = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert torch.autograd.gradcheck(lambda v: function(v, mask), (logits,))
    assert torch.autograd.gradgradcheck(lambda v: function(v, mask), (logits,))
    assert torch.autograd.gradcheck(
        lambda v: function(v, mask.T, dim=0).T, (logits.T.detach().requires_grad_(),)
    )


@settings(settings.get_profile("ops"))
@given(
    st.lists(st.tuples(st.floats(-(2.0**100), 2.0**100, width=32), st.booleans()), min_size=1, max_size=6),
)
def test_probabilities_sum_to_one_or_nothing(entries: list[tuple[float, bool]]) -> None:
    logits = torch.tensor([value for value, _ in entries])
    mask = torch.tensor([kept for _, kept in entries])
    probabilities, grad = value_and_grad(lambda v: masked_softmax(v, mask), logits)
    assert probabilities.sum().item() == pytest.approx(1.0 if mask.any() else 0.0, rel=1e-5)
    assert (probabilities[~mask] == 0).all() and grad.isfinite().all()
    mean, _ = value_and_grad(lambda v: masked_mean(v, mask), logits)
    assert mean.item() == pytest.approx(
        logits[mask].double().mean().item() if mask.any() else 0.0, rel=1e-4, abs=1e24
    )


def test_softmax_agrees_with_the_plain_one_where_nothing_is_masked() -> None:
    logits = torch.randn(3, 5)
    every = torch.ones(3, 5, dtype=torch.bool)
    assert torch.equal(masked_softmax(logits, every), logits.softmax(-1))
    assert torch.equal(masked_log_softmax(logits, every), logits.log_softmax(-1))
    assert masked_softmax(torch.zeros(0, 3), torch.ones(0, 3, dtype=torch.bool)).shape == (0, 3)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_weights_that_sum_to_zero_become_uniform(dtype: torch.dtype) -> None:
    zero = torch.zeros(4, dtype=dtype)
    value, grad = value_and_grad(normalize_weights, zero)
    assert value.tolist() == [0.25] * 4 and (grad == 0).all()
    assert (zero / zero.sum()).isnan().all()


def test_weights_of_bad_heads_are_left_out() -> None:
    weights = torch.tensor([1.0, NAN, 3.0])
    mask = torch.tensor([True, False, True])
    value, grad = value_and_grad(lambda v: normalize_weights(v, mask), weights)
    assert value.tolist() == [0.25, 0.0, 0.75] and grad.isfinite().all()
    assert normalize_weights(torch.zeros(3), mask).tolist() == [0.5, 0.0, 0.5]
    assert normalize_weights(weights, torch.zeros(3, dtype=torch.bool)).tolist() == [0.0, 0.0, 0.0]


def test_weight_gradients() -> None:
    weights = (torch.rand(2, 3, dtype=torch.float64) + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(normalize_weights, (weights,))
    assert torch.autograd.gradgradcheck(normalize_weights, (weights,))
