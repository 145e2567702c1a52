"""What is found by blocks, threads and single words is what a plain look at every row finds, in random files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from stayfinite.data import examine as examine_module
from stayfinite.data import examine_data, shared_keys
from stayfinite.data import repeated as repeated_module
from stayfinite.findings.subjects.data_set import DataArray, Samples
from stayfinite.readers.data import tensor_files

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int16, torch.uint8]


def reference(rows: torch.Tensor) -> dict[str, object]:
    """Every row by itself, in Python: slow and plain."""
    found: dict[str, list[int]] = {"bad": [], "zero": [], "constant": [], "repeats": [], "of": []}
    last: dict[bytes, int] = {}
    for number, row in enumerate(rows):
        finite = torch.isfinite(row) if row.is_floating_point() else torch.ones_like(row, dtype=torch.bool)
        if not finite.all():
            found["bad"].append(number)
        if bool((row == row[0]).all()):
            found["zero" if row[0] == 0 else "constant"].append(number)
        key = row.contiguous().view(torch.uint8).numpy().tobytes()
        if key in last and bool((row == row).all()) and bool((row != 0).any()):
            found["repeats"].append(number)
            found["of"].append(last[key])
        last[key] = number
    if rows.dtype in (torch.int64, torch.int16):  # numbers of something, not samples: nobody minds repeats
        found["repeats"], found["of"] = [], []
    values = rows.double()
    fine = values[torch.isfinite(values)]
    shown = {name: rows[:20] + [-1] * (len(rows) - 20) for name, rows in found.items()}
    return {
        **shown,
        "of": found["of"][:20],
        "range": (float(fine.min()), float(fine.max())) if fine.numel() else None,
    }


def as_found(array: DataArray) -> dict[str, object]:
    def rows(samples: Samples) -> list[int]:
        return samples.first + [-1] * (
            samples.count - len(samples.first)
        )  # of those past the first, how many

    return {
        "bad": rows(array.bad),
        "zero": rows(array.zero),
        "constant": rows(array.constant),
        "repeats": rows(array.duplicates),
        "of": array.duplicate_of,
        "range": (array.minimum, array.maximum) if array.maximum >= array.minimum else None,
    }


def faulty(rng: random.Random, dtype: torch.dtype, count: int, width: int, block: int) -> torch.Tensor:
    """Random rows with faults, many of them beside the borders of blocks and of threads."""
    torch.manual_seed(rng.randrange(1 << 30))
    made = torch.randn(count, width) * 40 + 60 if dtype is torch.uint8 else torch.randn(count, width) * 3000
    rows = made.to(dtype) if dtype.is_floating_point else made.clamp(0, 255).to(dtype)
    if rng.random() < 0.3:
        rows[:, width // 3 : width // 3 * 2] = rows[0, 0]  # the middles tell no two of them apart
    borders = [at + side for at in range(0, count, block) for side in (-2, -1, 0, 1)]
    places = [at for at in borders if 0 <= at < count] + [rng.randrange(count) for _ in range(12)]
    for _ in range(rng.randrange(9)):
        at, kind = rng.choice(places), rng.randrange(6)
        if kind == 0 and dtype.is_floating_point:
            rows[at, rng.randrange(width)] = rng.choice([float("nan"), float("inf"), -float("inf")])
        elif kind == 1:
            rows[at] = 0
            if dtype.is_floating_point:
                rows[at, ::2] *= -1
        elif kind == 2:
            rows[at] = rng.randrange(1, 99)
        elif kind == 3:
            rows[at] = rows[rng.choice(places)]
        elif (
            kind == 4 and rng.random() < 0.5
        ):  # the same in the middle, where rows are told apart first, only
            rows[at, width // 4 : -width // 4] = rows[rng.choice(places), width // 4 : -width // 4]
        elif kind == 4:  # nearly a repeat, nearly of one value
            rows[at] = rows[rng.choice(places)]
            rows[at, rng.randrange(width)] += 1
        else:
            rows[at] = 7
            rows[at, rng.choice([0, width - 1])] = 8
    return rows


@pytest.mark.parametrize("one_sort", [True, False], ids=["one-sort", "groups"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_faults(
    dtype: torch.dtype, one_sort: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_keys, "_numpy_sorts_fast", lambda: one_sort)
    monkeypatch.setattr(tensor_files, "BLOCK", 16 << 10)  # many blocks, units and groups of a small file
    monkeypatch.setattr(examine_module, "BLOCK", 16 << 10)
    monkeypatch.setattr(examine_module, "_UNIT", 48 << 10)
    monkeypatch.setattr(repeated_module, "_MANY", 20)
    monkeypatch.setattr(shared_keys, "_SORTED_TOGETHER", 32)
    monkeypatch.setattr(shared_keys, "_TOGETHER", 24)
    rng = random.Random(str(dtype))
    for trial in range(14):
        count = rng.choice([1, 2, 3, 17, 90, 140, 260])
        width = rng.choice([2, 3, 5, 64, 140, 264, 301, 384])
        rows = faulty(rng, dtype, count, width, max(1, (16 << 10) // (width * dtype.itemsize)))
        stored = rows
        if trial % 4 == 3:  # not contiguous: every second row, or columns first
            stored = torch.stack((rows, rows), 1)[:, 0] if trial % 8 == 3 else rows.t().contiguous().t()
        path = tmp_path / "embeddings.pt"
        torch.save({"embeddings": stored}, path)
        for jobs in (1, 3):
            (array,) = examine_data(str(path), jobs=jobs).data.arrays
            assert as_found(array) == reference(rows), (dtype, trial, count, width, jobs)


@pytest.mark.parametrize("one_sort", [True, False], ids=["one-sort", "groups"])
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_repeats_among_many_keys(jobs: int, one_sort: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_keys, "_numpy_sorts_fast", lambda: one_sort)
    rng = np.random.default_rng(jobs)
    keys = torch.from_numpy(rng.integers(-(2**62), 2**62, 700_000))
    keys[5] = keys[4] ^ 0x5_0000_0005  # the digest of its neighbour, but not the key
    keys[600_000:600_050] = keys[:50]
    keys[699_999] = keys[600_003]
    expected = [(600_000 + i, i) for i in range(50)]
    assert repeated_module.repeated(keys, jobs) == sorted([*expected, (699_999, 600_003)])
