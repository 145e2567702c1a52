import pytest
import torch
from torch import Tensor

from ops.value_and_grad import HALF_AND_SINGLE, value_and_grad
from stayfinite.ops import beta_mutual_information


def plain(student: Tensor, teacher: Tensor, marginal: Tensor, beta: float) -> Tensor:
    """The loss as its authors write it, on probabilities."""
    return -((student * teacher) ** beta / marginal).sum(-1).log()


@pytest.mark.parametrize("beta", [0.4, 0.5, 0.6, 1.0])
def test_it_equals_the_plain_form_where_that_is_fine(beta: float) -> None:
    student, teacher, marginal = (torch.randn(6, 5, dtype=torch.float64).softmax(-1) for _ in range(3))
    ours = beta_mutual_information(student.log(), teacher.log(), marginal.log(), beta)
    torch.testing.assert_close(ours, plain(student, teacher, marginal, beta))


def test_a_confident_head_breaks_the_plain_gradient_and_not_ours() -> None:
    logits = torch.tensor([[12.0, 0.0, -12.0]])
    teacher = (logits / 0.04).log_softmax(-1)
    uniform = torch.full((3,), 1 / 3)
    loss, grad = value_and_grad(lambda v: plain((v / 0.1).softmax(-1), teacher.exp(), uniform, 0.6), logits)
    assert loss.isfinite().all() and not grad.isfinite().all()

    def student(v: Tensor) -> Tensor:
        return (v / 0.1).log_softmax(-1)

    value, ours = value_and_grad(
        lambda v: beta_mutual_information(student(v), teacher, uniform.log(), 0.6), logits
    )
    exact, exact_grad = value_and_grad(
        lambda v: beta_mutual_information(student(v), teacher.double(), uniform.double().log(), 0.6),
        logits.double(),
    )
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.double(), exact_grad, rtol=1e-5, atol=1e-6)


def test_the_clamped_form_gives_a_disagreeing_sample_no_gradient() -> None:
    logits = torch.tensor([[12.0, -12.0]])
    teacher = torch.tensor([[-12.0, 12.0]])
    marginal = torch.tensor([0.5, 0.5])

    def clamped(v: Tensor) -> Tensor:
        product = ((v / 0.1).softmax(-1) * (teacher / 0.04).softmax(-1)).clamp(min=1e-8)
        return -(product**0.6 / marginal).sum(-1).log()

    def ours(v: Tensor) -> Tensor:
        return beta_mutual_information(
            (v / 0.1).log_softmax(-1), (teacher / 0.04).log_softmax(-1), marginal.log(), 0.6
        )

    assert (value_and_grad(clamped, logits)[1] == 0).all()
    assert value_and_grad(ours, logits)[1].abs().max() > 1


def test_an_unused_cluster_is_left_out() -> None:
    marginal = torch.tensor([0.5, 0.5, 0.0])
    log_student = torch.randn(4, 3).log_softmax(-1)
    log_teacher = torch.randn(4, 3).log_softmax(-1)
    value, grad = value_and_grad(
        lambda v: beta_mutual_information(v, log_teacher, marginal.log(), 0.5), log_student
    )
    assert value.isfinite().all() and grad.isfinite().all() and (grad[:, 2] == 0).all()
    expected = beta_mutual_information(log_student[:, :2], log_teacher[:, :2], marginal[:2].log(), 0.5)
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_extreme_logits_stay_finite(dtype: torch.dtype) -> None:
    logits = torch.tensor([[60000.0, -60000.0], [0.0, 0.0], [-60000.0, 60000.0]], dtype=dtype)
    teacher = torch.tensor([[-60000.0, 60000.0]] * 3).log_softmax(-1)
    value, grad = value_and_grad(
        lambda v: beta_mutual_information(v.float().log_softmax(-1), teacher, torch.zeros(2), 0.6), logits
    )
    assert value.shape == (3,) and value.dtype == torch.float32
    assert value.isfinite().all() and grad.isfinite().all()


def test_gradients_and_dimension() -> None:
    log_student, log_teacher, log_marginal = (
        torch.randn(3, 4, dtype=torch.float64).log_softmax(0).requires_grad_() for _ in range(3)
    )
    arguments = (log_student, log_teacher, log_marginal)
    assert torch.autograd.gradcheck(lambda s, t, m: beta_mutual_information(s, t, m, 0.6, dim=0), arguments)
    assert torch.autograd.gradgradcheck(
        lambda s, t, m: beta_mutual_information(s, t, m, 0.6, dim=0), arguments
    )
    assert beta_mutual_information(*arguments, 0.6, dim=0).shape == (4,)


def test_beta_must_be_positive() -> None:
    zero = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="beta must be positive, got 0"):
        beta_mutual_information(zero, zero, zero, 0.0)
