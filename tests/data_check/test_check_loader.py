"""stayfinite.data.check: real loaders of every shape, and nothing of the run changes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import stayfinite
from stayfinite.findings import Finding

NAN = float("nan")


def by_code(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.code: finding for finding in findings}


def test_a_healthy_loader_is_silent() -> None:
    data = TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(0, 10, (256,)))
    verdict = stayfinite.data.check(DataLoader(data, batch_size=32, shuffle=True), classes=10)
    assert verdict.healthy and verdict.findings == []


def test_faults_are_named_by_their_place() -> None:
    inputs, labels = torch.randn(64, 16), torch.randint(0, 10, (64,))
    inputs[33, 2], inputs[40], labels[50] = NAN, 1.5, 12
    found = by_code(
        stayfinite.data.check(DataLoader(TensorDataset(inputs, labels), batch_size=8), classes=10).findings
    )
    assert found["DAT020"].evidence["first_samples"] == ["33"]
    assert found["DAT023"].evidence["first_samples"] == ["40"]
    assert found["DAT028"].evidence["first_samples"] == ["50"]


def test_only_the_first_batches() -> None:
    inputs = torch.randn(64, 4)
    inputs[60] = NAN
    loader = DataLoader(TensorDataset(inputs), batch_size=8)
    assert stayfinite.data.check(loader, n=3).healthy
    assert not stayfinite.data.check(loader, n=None).healthy


class Tokens(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = 4 + index
        labels = torch.full((length,), -100) if index == 6 else torch.randint(0, 50, (length,))
        return {"input_ids": torch.randint(0, 50, (length,)), "labels": labels, "name": f"s{index}"}


def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
    pad_to = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad_to([s["input_ids"] for s in samples], batch_first=True),
        "labels": pad_to([s["labels"] for s in samples], batch_first=True, padding_value=-100),
        "name": [s["name"] for s in samples],
    }


def test_dicts_of_batches_with_different_widths() -> None:
    found = by_code(stayfinite.data.check(DataLoader(Tokens(), batch_size=4, collate_fn=pad)).findings)
    assert list(found) == ["DAT027"] and found["DAT027"].evidence["first_samples"] == ["6"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(30):
            yield torch.full((4,), float(index)) + torch.rand(4), torch.rand(2)


def test_streams_arrays_and_nested_batches() -> None:
    assert stayfinite.data.check(DataLoader(Stream(), batch_size=5)).healthy
    assert not stayfinite.data.check([(np.ones((4, 3)) * NAN, {"deep": [np.zeros(4)]})]).healthy
    assert stayfinite.data.check([]).data.problems


@pytest.mark.parametrize("own", [False, True])
def test_the_random_generators_are_put_back(own: bool) -> None:
    """With and without a check before it, the run sees the same shuffle and the same noise."""

    class Noisy(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randn(4) + index + random.random() + float(np.random.rand())

    def draw(check_first: bool) -> torch.Tensor:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        generator = torch.Generator().manual_seed(5) if own else None
        loader = DataLoader(Noisy(), batch_size=8, shuffle=True, generator=generator)
        if check_first:
            stayfinite.data.check(loader, n=2)
        return torch.cat(list(loader))

    assert draw(True).equal(draw(False))


def test_torch_is_loaded_only_when_it_is_used() -> None:
    code = (
        "import sys, stayfinite; stayfinite.data; import stayfinite.data; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
