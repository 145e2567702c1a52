"""A loop that draws its batches itself: a bad one is passed over, and is not drawn for ever."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from stayfinite import Guard

WAYS = ["step", "watch"]


class Drawing:
    """A model whose batches are drawn in the body; one whose first value lies in a band is bad."""

    def __init__(self, folder: Path, dropout: float = 0.0) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.guard = Guard(self.model, self.optimizer, run_dir=folder, quiet=True, locate=False)
        self.seen: list[float] = []

    def loss(self) -> Tensor:
        batch = torch.randn(8, 4)
        self.seen.append(float(batch[0, 0]))
        loss: Tensor = self.model(batch).pow(2).mean()
        return loss * float("nan") if 0.9 < batch[0, 0] < 1.5 else loss

    def go(self, way: str, steps: int) -> None:
        if way == "step":
            for _ in range(steps):
                self.guard.step(self.loss)
            return
        for _ in self.guard.watch(range(steps)):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_bad_batch_that_the_loop_draws_comes_twice_at_most(
    tmp_path: Path, way: str, dropout: float
) -> None:
    run = Drawing(tmp_path, dropout)
    run.go(way, 90)
    counts = {value: run.seen.count(value) for value in run.seen}
    bad = [value for value in counts if 0.9 < value < 1.5]
    assert len(bad) > 3, "the course has several"
    assert counts[bad[0]] == 2, "nobody could know that it would be drawn again"
    assert all(counts[value] == 1 for value in counts if value != bad[0]), "from then on it is known"
    assert run.guard.counters.applied + run.guard.counters.skipped == 90
    assert run.guard.counters.skipped == len(bad) + 1


@pytest.mark.parametrize("way", WAYS)
def test_noise_that_breaks_the_same_batch_is_drawn_anew(tmp_path: Path, way: str) -> None:
    """A whole data set in each step, and the forward pass draws what is bad: the same noise would fail for ever."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            noise = torch.randn(())
            value: Tensor = self.inner(x) + noise
            return value * float("nan") if 0.9 < noise < 1.5 else value

    torch.manual_seed(5)
    model, data = Noisy(), torch.randn(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)

    if way == "step":
        for _ in range(40):
            guard.step(lambda: model(data).pow(2).mean())
    else:
        for batch in guard.watch([data] * 40):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    counters = guard.counters
    assert counters.skipped >= 3 and counters.applied + counters.skipped == 40


def _reference(
    bad: set[int], train: Callable[[nn.Module, torch.optim.Optimizer, Tensor], None]
) -> list[Tensor]:
    model, optimizer, batches = _parts()
    for number, batch in enumerate(batches):
        if number not in bad:
            train(model, optimizer, batch)
    return [p.detach() for p in model.parameters()]


def _parts() -> tuple[nn.Module, torch.optim.Optimizer, list[Tensor]]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.05), [torch.randn(8, 4) for _ in range(20)]


@pytest.mark.parametrize("way", ["closure", "argument", "watch"])
def test_bad_batches_in_a_row_that_are_handed_over_leave_no_trace(tmp_path: Path, way: str) -> None:
    bad = {5, 6, 7, 12, 13}

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

    expected = _reference(bad, train)
    model, optimizer, batches = _parts()
    for number in bad:
        batches[number][0, 0] = torch.nan
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)

    def handed() -> Iterator[Tensor]:
        yield from batches

    if way == "watch":
        for batch in guard.watch(handed()):
            train(model, optimizer, batch)
    else:
        for batch in handed():
            if way == "argument":
                guard.step(lambda x: model(x).pow(2).mean(), batch)
            else:
                guard.step(lambda: model(batch).pow(2).mean())  # noqa: B023 - called at once
    assert guard.counters.skipped == 5
    for value, before in zip(model.parameters(), expected, strict=True):
        assert torch.equal(value, before)


@pytest.mark.parametrize("way", ["step", "watch", "close"])
def test_nothing_stays_hooked(tmp_path: Path, way: str) -> None:
    """What waits for a forward pass after a refusal: a loop that ends there, and a guard that is closed."""
    model, optimizer, batches = _parts()
    batches[-1][0] = torch.nan
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, locate=False)
    before = len(torch_module._global_forward_pre_hooks), len(warnings.filters)
    if way == "watch":
        for batch in guard.watch(batches):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
    else:
        for batch in batches:
            guard.step(lambda x: model(x).pow(2).mean(), batch)
        if way == "close":
            guard._owner.open_window()  # as `run` does between two steps
            assert len(torch_module._global_forward_pre_hooks) > before[0]
            guard.close()
    assert guard.counters.skipped == 1
    assert (len(torch_module._global_forward_pre_hooks), len(warnings.filters)) == before
