import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from stayfinite.ops import clip_grad_norm

NAN, INF = float("nan"), float("inf")


def parameters_with(*gradients: Tensor) -> list[Tensor]:
    made = []
    for gradient in gradients:
        parameter = torch.zeros_like(gradient).requires_grad_()
        parameter.grad = gradient.clone()
        made.append(parameter)
    return made


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@settings(settings.get_profile("ops"))
@given(
    st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([1e-3, 1.0, 5.0, 1e6]), st.floats(1e-6, 1e6)
)
def test_finite_float32_gradients_are_clipped_bit_for_bit_as_torch_does(
    seed: int, count: int, max_norm: float, size: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(3 + 17 * i, 5, generator=generator) * size for i in range(count)]
    ours, theirs = parameters_with(*gradients), parameters_with(*gradients)
    result = clip_grad_norm(ours, max_norm)
    norm = nn.utils.clip_grad_norm_(theirs, max_norm)
    assert same_bits(result.norm, norm) and bool(result.finite)
    assert bool(result.clipped) == bool(max_norm / (norm + 1e-6) < 1)
    for mine, other in zip(gradients_of(ours), gradients_of(theirs), strict=True):
        assert same_bits(mine, other)


def test_bit_for_bit_over_mixed_wide_dtypes() -> None:
    gradients = [torch.randn(4), torch.randn(4, dtype=torch.float64), torch.randn(7)]
    ours, theirs = parameters_with(*gradients), parameters_with(*gradients)
    assert same_bits(clip_grad_norm(ours, 0.5).norm, nn.utils.clip_grad_norm_(theirs, 0.5))
    for mine, other in zip(gradients_of(ours), gradients_of(theirs), strict=True):
        assert same_bits(mine, other)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_bad_gradient_leaves_every_gradient_as_it_was(bad: float, dtype: torch.dtype) -> None:
    gradients = [torch.randn(5).to(dtype), torch.tensor([1.0, bad, -0.0]).to(dtype)]
    ours, theirs = parameters_with(*gradients), parameters_with(*gradients)
    result = clip_grad_norm(ours, 1.0)
    assert not bool(result.finite) and not bool(result.clipped) and not result.norm.isfinite()
    for after, before in zip(gradients_of(ours), gradients, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    nn.utils.clip_grad_norm_(theirs, 1.0)
    assert not torch.equal(gradients_of(theirs)[0], gradients[0]), (
        "torch's own clipping destroys the good one"
    )


def test_finite_gradients_with_an_infinite_norm_are_left_alone() -> None:
    parameters = parameters_with(torch.full((3,), 1e30))
    result = clip_grad_norm(parameters, 1.0)
    assert not bool(result.finite)
    assert (gradients_of(parameters)[0] == 1e30).all()


def test_a_half_norm_beyond_65504_is_an_ordinary_number() -> None:
    gradient = torch.full((100,), 60000.0, dtype=torch.float16)
    ours, theirs = parameters_with(gradient), parameters_with(gradient)
    result = clip_grad_norm(ours, 1.0)
    assert bool(result.finite) and bool(result.clipped)
    assert result.norm.item() == pytest.approx(600000.0, rel=1e-3)
    assert gradients_of(ours)[0].float().norm().item() == pytest.approx(1.0, rel=1e-2)
    assert nn.utils.clip_grad_norm_(theirs, 1.0).isinf()
    assert (gradients_of(theirs)[0] == 0).all()


def test_mixed_half_and_single_gradients() -> None:
    parameters = parameters_with(torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.bfloat16))
    result = clip_grad_norm(iter(parameters), 1.0)
    assert result.norm.item() == 5.0 and result.norm.dtype == torch.float32
    assert [g.item() for g in gradients_of(parameters)] == pytest.approx([0.6, 0.8], rel=1e-2)


def test_error_if_nonfinite_names_the_gradient_and_changes_nothing() -> None:
    parameters = parameters_with(torch.ones(2), torch.tensor([[1.0, NAN]]))
    with pytest.raises(RuntimeError, match=r"gradient 1 of 2, shape \(1, 2\), holds 1 NaN or Inf"):
        clip_grad_norm(parameters, 1.0, error_if_nonfinite=True)
    assert gradients_of(parameters)[0].tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="every gradient is finite"):
        clip_grad_norm(parameters_with(torch.full((2,), 1e30)), 1.0, error_if_nonfinite=True)


def test_nothing_to_clip() -> None:
    for nothing in ([], [torch.zeros(2, requires_grad=True)]):
        result = clip_grad_norm(nothing, 1.0)
        assert result.norm == 0 and bool(result.finite) and not bool(result.clipped)


def test_a_single_tensor_and_a_wrong_max_norm() -> None:
    (parameter,) = parameters_with(torch.tensor([3.0, 4.0]))
    assert clip_grad_norm(parameter, 10.0).norm == 5
    with pytest.raises(ValueError, match="max_norm must be 0 or positive"):
        clip_grad_norm(parameter, NAN)
