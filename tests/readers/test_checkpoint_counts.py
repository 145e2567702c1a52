"""Counts, first index and range equal a naive reference, for random trees, types, views and planted values."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from stayfinite.checkpoint import verify
from stayfinite.findings.subjects.checkpoint import Statistics
from stayfinite.readers.checkpoint.half_range import half_range

torch.set_num_threads(1)
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip
VIEWS = ["plain", "transposed", "slice", "expanded", "offset", "window-of-larger", "sliding"]


def naive(tensor: torch.Tensor) -> dict[str, Any]:
    """The obvious way, on the loaded tensor."""
    if tensor.dtype.is_floating_point and tensor.element_size() == 1:
        tensor = tensor.to(torch.float32)
    nan = torch.isnan(tensor)
    inf = torch.isinf(tensor) & ~nan
    bad = (nan | inf).reshape(-1)
    first = None
    if bool(bad.any()):
        flat = int(bad.nonzero()[0])
        first = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), tensor.shape))
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    finite = parts[torch.isfinite(parts)].to(torch.float64)
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (None, None)
    return {"nan": int(nan.sum()), "inf": int(inf.sum()), "first": first, "min": low, "max": high}


def found(stats: Statistics) -> dict[str, Any]:
    low = None if stats.minimum is None else float(stats.minimum)
    high = None if stats.maximum is None else float(stats.maximum)
    return {"nan": stats.nan, "inf": stats.inf, "first": stats.first_bad, "min": low, "max": high}


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 7), min_size=0, max_size=4))
    seed = draw(st.integers(0, 2**31))
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    made = made.to(torch.complex128) if dtype.is_complex else made
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, max(made.numel() - 1, 0)))
        made.view(-1)[place] = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    if not dtype.is_floating_point and not dtype.is_complex:
        made = torch.nan_to_num(made, 0.0, 1.0, 0.0).abs()
    made = made.to(dtype)
    view = draw(st.sampled_from(VIEWS))
    if view == "transposed" and made.dim() >= 2:
        made = made.transpose(0, -1)
    elif view == "slice" and made.dim() >= 1:
        made = made[..., ::2]
    elif view == "expanded":
        made = made.unsqueeze(0).expand(3, *made.shape)
    elif view == "offset" and made.dim() >= 1:
        made = made[1:]
    elif view == "sliding" and made.dim() >= 1 and made.shape[0] >= 3:
        made = made.unfold(0, 3, 1)
    elif view == "window-of-larger" and made.dim() >= 2:
        made = made[:, : max(1, made.shape[1] - 1)]
    return made


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    names = st.text("abcdefgh._0123", min_size=1, max_size=8)
    leaf = tensors()
    tree = st.recursive(
        leaf, lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=5
    )
    return draw(st.dictionaries(names, tree, min_size=1, max_size=4))


def leaves(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        return [(".".join(path), tree)]
    return [pair for key, value in tree.items() for pair in leaves(value, (*path, key))]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees(), st.sampled_from(["zip", "legacy", "memory"]))
def test_counts_equal_the_naive_reference(tree: dict[str, Any], form: str) -> None:
    expected = leaves(tree)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pt"
        if form == "memory":
            verdict = verify(tree)
        else:
            torch.save(tree, path, _use_new_zipfile_serialization=form == "zip")
            verdict = verify(path)
    assert not any(finding.code == "CKP020" for finding in verdict.findings)
    measured = [t for t in verdict.checkpoint.tensors if t.name != "number"]
    assert sorted(t.name for t in measured) == sorted(name for name, _ in expected)
    # Two places in a tree can have the same joined name; then only the multiset can be compared.
    wanted = sorted((name, repr(naive(t))) for name, t in expected if t.numel() and t.dtype is not torch.bool)
    got = sorted(
        (t.name, repr(found(t.statistics)))
        for t in measured
        if t.statistics and t.numel and t.dtype != "bool"
    )
    assert got == wanted


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.text("abcd.", min_size=1, max_size=6), tensors(), min_size=1, max_size=4))
def test_safetensors_counts(state: dict[str, torch.Tensor]) -> None:
    state = {k: v.contiguous().clone() for k, v in state.items() if v.dtype is not torch.complex128}
    if not state:
        return
    with tempfile.TemporaryDirectory() as folder:
        save_file(state, Path(folder) / "a.safetensors")
        verdict = verify(Path(folder) / "a.safetensors")
    for tensor in verdict.checkpoint.tensors:
        if tensor.statistics and tensor.numel and tensor.dtype != "bool":
            assert found(tensor.statistics) == naive(state[tensor.name])


@pytest.mark.long
def test_tensors_larger_than_a_piece(tmp_path: Path) -> None:
    """Across the borders of pieces and of the parts that threads share; dense, transposed and sliced."""
    large = torch.zeros(20_000_000)
    large[17_000_001] = math.inf
    large[4_194_304 // 4] = math.nan
    matrix = torch.randn(3000, 1500)
    matrix[2999, 1] = math.nan
    matrix[7, 1400] = math.nan
    state = {"large": large, "transposed": matrix.t(), "columns": matrix[:, 1:1401:3], "rows": matrix[5:]}
    torch.save(state, tmp_path / "a.pt")
    for jobs in (1, 3):
        stats = {t.name: t.statistics for t in verify(tmp_path / "a.pt", jobs=jobs).checkpoint.tensors}
        for name, tensor in state.items():
            assert found(stats[name]) == naive(tensor), name  # type: ignore[arg-type]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=40),
    st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_range_from_bits_equals_the_range_of_the_values(bits: list[int], dtype: torch.dtype) -> None:
    """Any pattern at all: denormal numbers, both zeros, every NaN."""
    values = torch.tensor([b - 0x10000 if b >= 0x8000 else b for b in bits], dtype=torch.int16).view(dtype)
    low, high = half_range(values)
    expected = torch.aminmax(values.to(torch.float32))
    assert (repr(low), repr(high)) == (repr(float(expected.min) + 0.0), repr(float(expected.max) + 0.0))
