"""One pass over the gradients: torch's own norm and clipping to the bit, and the names of the bad ones."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from stayfinite.watch.sentinel import read


def with_gradients(dtypes: list[torch.dtype], scale: float = 1.0, seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for index, dtype in enumerate(dtypes):
        parameter = nn.Parameter(torch.zeros(5, index + 1, dtype=dtype))
        parameter.grad = (torch.randn(5, index + 1, generator=generator) * scale).to(dtype)
        parameters[f"p{index}"] = parameter
    return parameters


def names_of(parameters: dict[str, nn.Parameter]) -> dict[torch.Tensor, str]:
    return {parameter: name for name, parameter in parameters.items()}


@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float32] * 7,
        [torch.float32, torch.float64, torch.float32],
        [torch.bfloat16, torch.float32, torch.bfloat16],
        [torch.float16] * 3,
        [torch.complex64, torch.float32],
    ],
)
@pytest.mark.parametrize("max_norm", [0.1, 1.0, 1e6])
def test_norm_and_clipping_are_torchs_own_bit_for_bit(dtypes: list[torch.dtype], max_norm: float) -> None:
    mine = with_gradients(dtypes)
    theirs = copy.deepcopy(mine)
    for name, parameter in theirs.items():
        parameter.grad = mine[name].grad.clone()  # type: ignore[union-attr]
    reading = read(list(mine.values()), names_of(mine))
    expected = clip_grad_norm_(list(theirs.values()), max_norm)
    assert reading.total.dtype == expected.dtype and torch.equal(reading.total, expected)
    reading.clip(max_norm)
    for name in mine:
        assert torch.equal(mine[name].grad, theirs[name].grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_gradient_makes_the_norm_bad_and_is_named(value: float) -> None:
    parameters = with_gradients([torch.float32] * 5)
    parameters["p3"].grad[4, 2] = value  # type: ignore[index]
    reading = read(list(parameters.values()), names_of(parameters))
    assert not math.isfinite(float(reading.total)) and reading.culprits() == ["p3"]


def test_a_norm_beyond_half_is_measured_in_float32() -> None:
    parameters = with_gradients([torch.float16] * 3, scale=3e4)
    reading = read(list(parameters.values()), names_of(parameters))
    assert math.isinf(float(reading.total)) and reading.is_half and reading.culprits() == []
    wide = float(reading.norm_in_float32())
    exact = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters.values()))  # type: ignore[union-attr]
    assert wide == pytest.approx(exact, rel=1e-3)


def test_parameters_without_a_gradient_do_not_count() -> None:
    parameters = with_gradients([torch.float32] * 3)
    parameters["p1"].grad = None
    reading = read(list(parameters.values()), names_of(parameters))
    assert reading.names == ["p0", "p2"] and not reading.is_half
    nothing = read([], {})
    nothing.clip(1.0)
    assert float(nothing.total) == 0.0 and nothing.culprits() == []


def test_sparse_gradients_with_repeated_rows() -> None:
    table = nn.Embedding(6, 3, sparse=True)
    table(torch.tensor([1, 1, 4])).sum().backward()
    dense = nn.Embedding(6, 3)
    dense(torch.tensor([1, 1, 4])).sum().backward()
    reading = read([table.weight], {table.weight: "table"})
    assert float(reading.total) == pytest.approx(float(clip_grad_norm_(dense.parameters(), 0.5)))
    reading.clip(0.5)
    torch.testing.assert_close(table.weight.grad.to_dense(), dense.weight.grad)  # type: ignore[union-attr]
    table.weight.grad._values()[0, 0] = math.nan  # type: ignore[union-attr]
    assert read([table.weight], {table.weight: "table"}).culprits() == ["table"]
