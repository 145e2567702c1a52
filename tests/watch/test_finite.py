"""Is it finite? The fused answer agrees with torch.isfinite for every dtype, layout and mixture."""

from __future__ import annotations

import math
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stayfinite.watch.finite import all_finite, nonfinite, peak, summarize, tensors_in

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
NAN, INF = math.nan, math.inf


def really_finite(tensor: Tensor) -> bool:
    dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return bool(torch.isfinite(dense.float() if dense.dtype in FLOAT8 else dense).all())


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from([*DTYPES, *FLOAT8, torch.int64, torch.bool]))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    value = torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-30, 30))
    numbers = value.reshape(-1)
    if numbers.numel() and draw(st.booleans()):
        numbers[draw(st.integers(0, numbers.numel() - 1))] = draw(st.sampled_from([NAN, INF, -INF]))
    if dtype.is_complex:
        part = torch.randn(shape, generator=generator)
        value = torch.complex(value, part) if draw(st.booleans()) else torch.complex(part, value)
    if dtype in (torch.int64, torch.bool):
        value = value.nan_to_num(0, 0, 0).clamp(-1e9, 1e9)
    value = value.to(dtype)
    if draw(st.booleans()) and value.dim() == 2 and dtype in DTYPES and value.numel():
        value = draw(st.sampled_from([value.to_sparse(), value.t(), value[:, ::2]]))
    return value


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(st.lists(tensors(), max_size=4))
def test_agrees_with_isfinite(several: list[Tensor]) -> None:
    expected = [really_finite(tensor) for tensor in several]
    assert all_finite(several) == all(expected)
    named = [(str(index), tensor) for index, tensor in enumerate(several)]
    assert [bad.name for bad in nonfinite(named)] == [str(i) for i, good in enumerate(expected) if not good]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_finite_numbers_are_finite(dtype: torch.dtype) -> None:
    """Also where their magnitude, square or sum is not: 3e38 + 3e38i has an absolute value beyond float32."""
    largest = torch.finfo(dtype).max
    value = torch.full((1000,), complex(largest, largest) if dtype.is_complex else largest, dtype=dtype)
    assert all_finite([value, -value])
    value[500] = INF
    assert not all_finite([value])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 100_003])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_bad_element_anywhere_is_seen(dtype: torch.dtype, size: int, bad: float) -> None:
    for index in {0, size // 2, size - 1}:
        value = torch.ones(size, dtype=dtype)
        value[index] = complex(0.0, bad) if dtype.is_complex else bad
        assert not all_finite([torch.ones(3), value, torch.ones(2, dtype=torch.float64)])


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_layouts() -> None:
    dense = torch.eye(4)
    for good in (dense.to_sparse(), dense.to_sparse_csr()):
        assert all_finite([good])
    dense[1, 2] = NAN
    for bad in (dense.to_sparse(), dense.to_sparse_csr()):
        assert not all_finite([bad])
        assert summarize("s", bad).nan == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors() -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    assert all_finite([torch.nested.nested_tensor(parts)])
    parts[1][3, 2] = NAN
    bad = torch.nested.nested_tensor(parts)
    assert [summary.nan for summary in nonfinite([("words", bad)])] == [1]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_cannot_be_non_finite_is_finite() -> None:
    others = [
        torch.arange(3),
        torch.tensor([True]),
        torch.empty(0),
        torch.empty(2, device="meta"),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.zeros(2, dtype=torch.uint16),
    ]
    assert all_finite(others) and peak(others) is None and nonfinite([("x", t) for t in others]) == []


def test_views_with_a_conjugate_bit() -> None:
    value = torch.full((2,), complex(1.0, NAN)).conj()
    assert value.is_conj() and not all_finite([value])
    assert summarize("z", value).nan == 2


def test_the_graph_is_left_alone() -> None:
    leaf = torch.ones(3, requires_grad=True)
    largest = peak([leaf * 2])
    assert largest is not None and largest == 2 and not largest.requires_grad


def test_peak_is_one_number_of_all_dtypes() -> None:
    largest = peak([torch.tensor([3.0], dtype=torch.float16), torch.tensor([-7e200], dtype=torch.float64)])
    assert largest is not None and largest.shape == () and largest == 7e200


def test_summary_counts_and_keeps_the_finite_range() -> None:
    summary = summarize("w", torch.tensor([[NAN, INF, -INF], [0.0, -2.0, 5.0]], dtype=torch.bfloat16))
    assert (summary.name, summary.shape, summary.dtype) == ("w", (2, 3), "bfloat16")
    assert (summary.nan, summary.inf, summary.zeros, summary.min, summary.max) == (1, 2, 1, -2.0, 5.0)
    nothing_good = summarize("w", torch.tensor([NAN]))
    assert (nothing_good.min, nothing_good.max) == (None, None)
    assert summarize("e", torch.empty(0)).min is None
    assert summarize("b", torch.tensor([True, False])).max == 1.0
    assert summarize("f", torch.tensor([1.0, NAN]).to(torch.float8_e5m2)).nan == 1


Pair = namedtuple("Pair", "left right")


@dataclass
class Sample:
    image: Tensor
    labels: dict[str, Tensor]
    name: str = "cat"


class Encoding(UserDict[str, Any]):
    """What tokenizers return: a mapping that is no dict."""


def test_the_tensors_of_a_batch_are_found_under_their_path() -> None:
    one = torch.ones(1)
    assert tensors_in(one) == [("batch", one)]
    paths = [path for path, _ in tensors_in([one, {"ids": one, "meta": {"n": 3}}, Pair(one, "text"), None])]
    assert paths == ["batch[0]", "batch[1]['ids']", "batch[2][0]"]
    assert [path for path, _ in tensors_in(Sample(one, {"box": one}))] == [
        "batch.image",
        "batch.labels['box']",
    ]
    assert [path for path, _ in tensors_in(Encoding(ids=one))] == ["batch['ids']"]
    assert tensors_in("text") == tensors_in(3) == tensors_in(None) == []
