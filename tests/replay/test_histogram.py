"""The histogram of a tensor at a birth: every finite value that is not zero is counted, in the right bin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfinite.replay.measure import account


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=40))
def test_every_value_is_counted_where_it_belongs(values: list[float]) -> None:
    found = account(torch.tensor(values, dtype=torch.float64))
    finite = [value for value in values if math.isfinite(value)]
    if found.histogram is None:
        assert len(finite) < 2 or not any(finite)
        return
    histogram = found.histogram
    for sign, counts in ((-1, histogram.negative), (1, histogram.positive)):
        exponents = [math.log10(sign * value) for value in finite if sign * value > 0]
        assert sum(counts) == len(exponents)
        assert len(counts) in (0, 16, *range(8, 17))
        width = (histogram.high - histogram.low) / max(len(counts), 1)
        for i, count in enumerate(counts):
            low, high = histogram.low + i * width, histogram.low + (i + 1) * width
            surely = sum(low + 1e-9 < e < high - 1e-9 for e in exponents)
            perhaps = sum(low - 1e-9 <= e <= high + 1e-9 for e in exponents)
            assert surely <= count <= perhaps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_any_dtype(dtype: torch.dtype) -> None:
    found = account(torch.tensor([1, 0, 1, 1]).to(dtype)).histogram
    assert found is not None
    assert (sum(found.positive), found.negative) == (3, ())


def test_in_deterministic_mode_too() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert account(torch.tensor([1e-30, -5.0, 3.0])).histogram is not None
    finally:
        torch.use_deterministic_algorithms(False)
