import pytest
import torch

from stayfinite.ops import tiny


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tiny_exists_in_its_dtype_and_so_does_its_reciprocal(dtype: torch.dtype) -> None:
    eps = torch.tensor(tiny(dtype), dtype=dtype)
    assert eps.item() == tiny(dtype) > 0
    assert eps.reciprocal().isfinite()


def test_the_popular_eps_does_not_exist_in_float16() -> None:
    assert torch.tensor(1e-8, dtype=torch.float16) == 0


def test_tiny_of_float16_is_the_smallest_possible() -> None:
    below = tiny(torch.float16) - 2.0**-24
    assert torch.tensor(below, dtype=torch.float16).reciprocal().isinf()


def test_tiny_accepts_a_tensor() -> None:
    assert tiny(torch.zeros(3, dtype=torch.float64)) == tiny(torch.float64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_dtypes_without_an_eps_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="has no eps: pass a real floating point dtype"):
        tiny(dtype)
