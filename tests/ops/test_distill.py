import pytest
import torch
from torch.nn import functional

from ops.value_and_grad import HALF_AND_SINGLE, value_and_grad
from stayfinite.ops import kd_loss

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_it_equals_torch_in_double(temperature: float) -> None:
    student, teacher = torch.randn(2, 6, 5, dtype=torch.float64)
    reference = temperature**2 * functional.kl_div(
        (student / temperature).log_softmax(-1), (teacher / temperature).softmax(-1), reduction="batchmean"
    )
    torch.testing.assert_close(kd_loss(student, teacher, temperature), reference)
    torch.testing.assert_close(kd_loss(student, teacher, temperature, reduction="sum"), 6 * reference)
    assert kd_loss(student, teacher, temperature, reduction="none").shape == (6,)


def test_clamp_then_log_in_float16_fails_and_ours_does_not() -> None:
    student = torch.tensor([[30.0, -30.0]], dtype=torch.float16)
    teacher = -student
    popular = student.softmax(-1).clamp(min=1e-8).log()
    assert popular.isinf().any()
    value, grad = value_and_grad(lambda v: kd_loss(v, teacher, 1.0), student)
    assert value.item() == pytest.approx(60.0) and value.dtype == torch.float32
    assert grad.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_masked_positions_may_hold_anything(dtype: torch.dtype) -> None:
    student = torch.tensor([[1.0, 2.0], [NAN, INF], [0.0, 0.0]], dtype=dtype)
    teacher = torch.tensor([[2.0, 1.0], [0.0, 1.0], [NAN, NAN]], dtype=dtype)
    mask = torch.tensor([True, False, False])
    value, grad = value_and_grad(lambda v: kd_loss(v, teacher, 2.0, mask), student)
    torch.testing.assert_close(value, kd_loss(student[:1], teacher[:1], 2.0))
    assert grad.isfinite().all() and (grad[1:] == 0).all() and (grad[0] != 0).all()
    assert kd_loss(student, teacher, 2.0, mask, "none")[1:].tolist() == [0.0, 0.0]
    assert kd_loss(student, teacher, 2.0, mask, "sum") == value


def test_nothing_kept_gives_zero() -> None:
    value, grad = value_and_grad(
        lambda v: kd_loss(v, torch.ones(2, 3), 2.0, torch.zeros(2, dtype=torch.bool)), torch.randn(2, 3)
    )
    assert value == 0 and (grad == 0).all()
    assert kd_loss(torch.zeros(0, 3), torch.zeros(0, 3), 2.0) == 0


def test_excluded_classes_count_nothing() -> None:
    student = torch.tensor([[1.0, 2.0, -INF], [1.0, 2.0, -INF]])
    teacher = torch.tensor([[2.0, 1.0, -INF], [2.0, 1.0, -500.0]], requires_grad=True)
    value, grad = value_and_grad(lambda v: kd_loss(v, teacher, 1.0, reduction="none"), student)
    torch.testing.assert_close(value, kd_loss(student[:, :2], teacher[:, :2], 1.0, reduction="none").detach())
    assert grad.isfinite().all()
    assert teacher.grad is not None and teacher.grad.isfinite().all()


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_the_largest_logits_stay_finite(dtype: torch.dtype) -> None:
    student = torch.tensor([[60000.0, -60000.0], [-60000.0, 60000.0]], dtype=dtype)
    value, grad = value_and_grad(lambda v: kd_loss(v, student.flip(-1), 0.04), student)
    assert value.isfinite() and grad.isfinite().all()


def test_gradients() -> None:
    student, teacher = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = torch.tensor([True, False, True])
    assert torch.autograd.gradcheck(lambda s, t: kd_loss(s, t, 1.5, mask), (student, teacher))
    assert torch.autograd.gradgradcheck(lambda s, t: kd_loss(s, t, 1.5, mask), (student, teacher))


@pytest.mark.parametrize("temperature", [0.0, -1.0, NAN, INF])
def test_a_wrong_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        kd_loss(torch.zeros(1, 2), torch.zeros(1, 2), temperature)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2\) and teacher logits \(1, 3\) must have the same shape"):
        kd_loss(torch.zeros(1, 2), torch.zeros(1, 3), 1.0)
    with pytest.raises(ValueError, match="the mask has the shape"):
        kd_loss(torch.zeros(2, 2), torch.zeros(2, 2), 1.0, torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="reduction must be"):
        kd_loss(torch.zeros(2, 2), torch.zeros(2, 2), 1.0, reduction="batchmean")  # type: ignore[arg-type]
