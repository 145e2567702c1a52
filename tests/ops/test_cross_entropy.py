import pytest
import torch
from torch.nn import functional

from ops.value_and_grad import HALF_AND_SINGLE, value_and_grad
from stayfinite.ops import masked_cross_entropy


def test_it_equals_torch_where_that_is_fine() -> None:
    logits = torch.randn(2, 4, 6)
    labels = torch.tensor([[0, 5, -100, 2], [-100, -100, 1, 3]])
    reference, reference_grad = value_and_grad(
        lambda v: functional.cross_entropy(v.reshape(-1, 6), labels.reshape(-1)), logits
    )
    value, grad = value_and_grad(lambda v: masked_cross_entropy(v, labels), logits)
    torch.testing.assert_close(value, reference)
    torch.testing.assert_close(grad, reference_grad)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_all_ignored_is_zero_where_torch_is_nan(dtype: torch.dtype) -> None:
    logits, labels = torch.randn(3, 4).to(dtype), torch.full((3,), -100)
    assert functional.cross_entropy(logits.float(), labels).isnan()
    value, grad = value_and_grad(lambda v: masked_cross_entropy(v, labels), logits)
    assert value == 0 and value.dtype == torch.float32 and (grad == 0).all()


def test_ignored_positions_may_hold_nan() -> None:
    logits = torch.tensor([[1.0, 2.0], [torch.nan, torch.inf]])
    labels = torch.tensor([0, -100])
    value, grad = value_and_grad(lambda v: masked_cross_entropy(v, labels), logits)
    torch.testing.assert_close(value, functional.cross_entropy(logits[:1], labels[:1]))
    assert grad.isfinite().all() and (grad[1] == 0).all()
    _, plain_grad = value_and_grad(lambda v: functional.cross_entropy(v, labels), logits)
    assert plain_grad[1].isnan().any()


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_the_largest_logits_stay_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[60000.0, -60000.0], [-60000.0, 60000.0]], dtype=dtype)
    value, grad = value_and_grad(lambda v: masked_cross_entropy(v, torch.tensor([1, 1])), logits)
    assert value.item() == pytest.approx(60000.0, rel=1e-2) and grad.isfinite().all()


def test_an_invented_ignore_index_and_an_empty_batch() -> None:
    assert masked_cross_entropy(torch.randn(2, 3), torch.tensor([7, 7]), ignore_index=7) == 0
    assert masked_cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)) == 0


def test_a_bad_kept_logit_is_not_hidden() -> None:
    assert masked_cross_entropy(torch.tensor([[torch.nan, 1.0]]), torch.tensor([0])).isnan()


def test_gradients() -> None:
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, -100, 2, 1])
    assert torch.autograd.gradcheck(lambda v: masked_cross_entropy(v, labels), (logits,))
    assert torch.autograd.gradgradcheck(lambda v: masked_cross_entropy(v, labels), (logits,))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="the classes must be the last dimension"):
        masked_cross_entropy(torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(IndexError):
        masked_cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
