import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from ops.value_and_grad import HALF_AND_SINGLE, value_and_grad
from stayfinite.ops import normalize, rms_norm, safe_norm


def test_norm_agrees_with_the_plain_one() -> None:
    x = torch.randn(5, 7)
    reference, reference_grad = value_and_grad(lambda v: torch.linalg.vector_norm(v, dim=1), x.double())
    value, grad = value_and_grad(lambda v: safe_norm(v, dim=1), x)
    torch.testing.assert_close(value.double(), reference, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad.double(), reference_grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("dim", "keepdim"), [(None, False), (None, True), (0, False), (-1, True), ((0, 2), False)]
)
def test_norm_shapes(dim: int | tuple[int, ...] | None, keepdim: bool) -> None:
    x = torch.randn(2, 1, 4)
    assert safe_norm(x, dim, keepdim).shape == torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim).shape


def test_norm_of_a_scalar_and_of_nothing() -> None:
    assert safe_norm(torch.tensor(-3.0)) == 3
    assert safe_norm(torch.zeros(0)) == 0
    assert safe_norm(torch.zeros(2, 0), dim=1).tolist() == [0.0, 0.0]
    assert safe_norm(torch.zeros(0, 3), dim=1).shape == (0,)


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1e-25, 1e25, 5e37])
def test_the_square_neither_overflows_nor_underflows(scale: float) -> None:
    x = torch.tensor([3.0, 4.0], dtype=torch.float64).mul(scale).float()
    reference, reference_grad = value_and_grad(torch.linalg.vector_norm, x.double())
    value, grad = value_and_grad(safe_norm, x)
    torch.testing.assert_close(value.double(), reference, rtol=1e-6, atol=1e-45)
    torch.testing.assert_close(grad.double(), reference_grad, rtol=1e-6, atol=0)
    plain = x.square().sum().sqrt()
    assert plain == 0 or plain.isinf()


def test_the_norm_of_half_vectors_is_float32() -> None:
    x = torch.full((4,), 60000.0, dtype=torch.float16)
    assert torch.linalg.vector_norm(x).isinf()
    assert safe_norm(x).item() == pytest.approx(2 * 60000.0, rel=1e-3)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_zero_vectors_have_zero_norm_and_zero_gradient(dtype: torch.dtype) -> None:
    zero = torch.zeros(2, 3, dtype=dtype)
    value, grad = value_and_grad(lambda v: safe_norm(v, dim=1), zero)
    assert (value == 0).all() and (grad == 0).all()
    _, plain_grad = value_and_grad(lambda v: v.square().sum(1).sqrt(), zero)
    assert plain_grad.isnan().all()


def test_a_positive_eps_rounds_the_corner_off() -> None:
    x = torch.tensor([0.0, 0.0, 1e-3], dtype=torch.float64, requires_grad=True)
    assert safe_norm(torch.zeros(3), eps=1e-3).item() == pytest.approx(1e-3)
    assert torch.autograd.gradcheck(lambda v: safe_norm(v, eps=0.1), (x,))
    assert torch.autograd.gradgradcheck(lambda v: safe_norm(v, eps=0.1), (x,))
    with pytest.raises(ValueError, match="eps must be 0 or positive"):
        safe_norm(x, eps=-1.0)


def test_bad_values_are_passed_on() -> None:
    assert safe_norm(torch.tensor([torch.inf, 1.0])).isinf()
    assert safe_norm(torch.tensor([torch.nan, 1.0])).isnan()
    rows = normalize(torch.tensor([[torch.nan, 1.0], [3.0, 4.0]]))
    assert rows[0].isnan().any()
    torch.testing.assert_close(rows[1], torch.tensor([0.6, 0.8]))


def test_norms_have_the_right_gradients() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, dtype=torch.float64, requires_grad=True)
    for function in (lambda v: safe_norm(v, dim=1), normalize, rms_norm, lambda v: normalize(50 * v, dim=0)):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,))
    assert torch.autograd.gradcheck(rms_norm, (5 * x.detach().requires_grad_(), weight))


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_normalising_a_zero_vector(dtype: torch.dtype) -> None:
    zero = torch.zeros(2, 3, dtype=dtype)
    value, grad = value_and_grad(normalize, zero)
    assert (value == 0).all() and (grad == 0).all()
    _, plain_grad = value_and_grad(functional.normalize, zero.float())
    assert plain_grad.abs().max() > 1e11


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_normalising_the_longest_and_the_shortest(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    x = torch.tensor(
        [[limits.max] * 3, [limits.smallest_normal] * 3, [limits.smallest_normal, 0, 0]], dtype=dtype
    )
    value, grad = value_and_grad(normalize, x)
    assert grad.isfinite().all()
    lengths = torch.linalg.vector_norm(value.double(), dim=1)
    torch.testing.assert_close(lengths, torch.ones(3, dtype=torch.float64), rtol=4 * limits.eps, atol=0)


def test_an_eps_of_ones_own_bounds_the_gradient() -> None:
    x = torch.tensor([[1e-7, 0.0], [1e-5, 0.0]])
    value, grad = value_and_grad(lambda v: normalize(v, eps=1e-6) @ torch.tensor([1.0, 1.0]), x)
    assert value.tolist() == [0.0, 1.0]
    assert grad.abs().max() <= 1e6
    with pytest.raises(ValueError, match="eps must be 0 or positive"):
        normalize(x, eps=-1e-3)


@settings(settings.get_profile("ops"))
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6))
def test_a_normalised_vector_has_length_one_or_zero(numbers: list[float]) -> None:
    x = torch.tensor(numbers)
    value, grad = value_and_grad(normalize, x)
    length = torch.linalg.vector_norm(value.double()).item()
    assert length == pytest.approx(1.0, rel=1e-5) or (length == 0 and x.abs().max() < 2.0**-126)
    assert grad.isfinite().all()


def test_rms_norm_agrees_with_torch() -> None:
    x, weight = torch.randn(4, 16) * 10, torch.randn(16)
    reference = functional.rms_norm(x.double(), (16,), weight.double(), eps=1e-6)
    torch.testing.assert_close(rms_norm(x, weight).double(), reference, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20, 3e38])
def test_rms_norm_of_any_size_is_finite(size: float) -> None:
    value, grad = value_and_grad(rms_norm, torch.tensor([size, -size, size / 2]))
    assert value.isfinite().all() and grad.isfinite().all()
    if size >= 1:
        torch.testing.assert_close(value, torch.tensor([1.0, -1.0, 0.5]) / 0.75**0.5)


def test_the_plain_rms_norm_of_a_large_input_is_zero() -> None:
    x = torch.full((3,), 1e20)
    assert (x * torch.rsqrt(x.square().mean() + 1e-6) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rms_norm_in_half(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.0, 0.0], [60000.0, 60000.0]], dtype=dtype)
    value, grad = value_and_grad(lambda v: rms_norm(v, torch.ones(2), eps=1e-8), x)
    assert value.dtype == dtype
    assert value.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert grad.isfinite().all()
    plain = x[0] * torch.rsqrt(x[0].square().mean() + torch.tensor(1e-8, dtype=torch.float16))
    assert plain.isnan().all() or dtype == torch.bfloat16


def test_rms_norm_refuses_an_eps_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"does not exist in torch\.float32"):
        rms_norm(torch.zeros(2), eps=1e-50)
    assert rms_norm(torch.zeros(2, 3), eps=1e-20).shape == (2, 3)
    assert rms_norm(torch.zeros(0, 3)).shape == (0, 3)
