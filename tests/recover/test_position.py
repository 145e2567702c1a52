"""DataPosition: a resumed run gets exactly the batches that were left, in the order they would have come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stayfinite.recover.position import DataPosition
from stayfinite.recover.rng import RngState

DATA = TensorDataset(torch.arange(37))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def batch_sampled() -> DataLoader[Any]:
    sampler = RandomSampler(DATA, generator=generator())
    return DataLoader(DATA, batch_sampler=BatchSampler(sampler, 4, drop_last=True))


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": lambda: DataLoader(DATA, 4),
    "shuffled": lambda: DataLoader(DATA, 4, shuffle=True),
    "own generator": lambda: DataLoader(DATA, 4, shuffle=True, generator=generator()),
    "sampler with a generator": lambda: DataLoader(
        DATA, 4, sampler=RandomSampler(DATA, generator=generator())
    ),
    "with replacement": lambda: DataLoader(
        DATA, 4, sampler=RandomSampler(DATA, replacement=True, num_samples=60, generator=generator())
    ),
    "batch sampler": batch_sampled,
    "distributed": lambda: DataLoader(DATA, 2, sampler=DistributedSampler(DATA, 2, 1, shuffle=True, seed=3)),
    "a list": lambda: [(torch.tensor([i]),) for i in range(9)],
}


def take(position: DataPosition, loader: Any, count: int) -> list[list[int]]:
    """The next batches over as many epochs as it takes, with random draws in between as a training step makes them."""
    taken: list[list[int]] = []
    while len(taken) < count:
        if hasattr(getattr(loader, "sampler", None), "set_epoch"):
            loader.sampler.set_epoch(position.epoch)
        for (batch,) in position.batches(loader):
            torch.rand(3)
            taken.append(batch.tolist())
            if len(taken) == count:
                return taken
    return taken


def resumed(make: Callable[[], Any], first: int, rest: int) -> list[list[int]]:
    """Stop after `first` batches; go on in a fresh position with a fresh loader."""
    torch.manual_seed(5)
    before = DataPosition()
    loader = make()
    taken = []
    for (batch,) in before.batches(loader):
        torch.rand(3)
        taken.append(batch.tolist())
        if len(taken) == first:
            before.waiting = False  # the batch was trained on
            saved, rng = before.state_dict(), before.rng()
            break
    torch.manual_seed(999)
    torch.rand(17)
    after = DataPosition()
    after.load_state_dict(saved)
    rng.restore()
    return taken + take(after, make(), rest)


@pytest.mark.parametrize("name", LOADERS)
def test_a_batch_that_was_not_trained_on_comes_again(name: str) -> None:
    torch.manual_seed(5)
    straight = take(DataPosition(), LOADERS[name](), 8)
    torch.manual_seed(5)
    before, taken = DataPosition(), []
    for (batch,) in before.batches(LOADERS[name]()):
        if len(taken) == 4:
            break  # this one is in hand, and nothing was done with it
        torch.rand(3)
        taken.append(batch.tolist())
    saved, rng = before.state_dict(), before.rng()
    torch.rand(7)
    after = DataPosition()
    after.load_state_dict(saved)
    rng.restore()
    assert taken + take(after, LOADERS[name](), 4) == straight


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("first", [1, 4, 8])
def test_the_rest_of_the_epoch_and_the_next_ones(name: str, first: int) -> None:
    torch.manual_seed(5)
    straight = take(DataPosition(), LOADERS[name](), 25)
    assert resumed(LOADERS[name], first, 25 - first) == straight


def test_two_workers() -> None:
    def make() -> Any:
        return DataLoader(DATA, 4, shuffle=True, num_workers=2, generator=generator())

    torch.manual_seed(5)
    straight = take(DataPosition(), make(), 14)
    assert resumed(make, 6, 8) == straight


@pytest.mark.parametrize("name", LOADERS)
def test_between_two_epochs(name: str) -> None:
    """The usual place to save: after the loop over an epoch. A loader's own generator must go on, not start anew."""
    torch.manual_seed(5)
    position, loader = DataPosition(), LOADERS[name]()
    first = [batch.tolist() for (batch,) in position.batches(loader)]
    saved, rng = position.state_dict(), RngState.capture()
    assert (position.epoch, position.batch) == (1, 0)
    if hasattr(getattr(loader, "sampler", None), "set_epoch"):
        loader.sampler.set_epoch(1)
    second = [batch.tolist() for (batch,) in position.batches(loader)]

    torch.manual_seed(123)
    again, fresh = DataPosition(), LOADERS[name]()
    again.load_state_dict(saved)
    rng.restore()
    if hasattr(getattr(fresh, "sampler", None), "set_epoch"):
        fresh.sampler.set_epoch(again.epoch)
    assert [batch.tolist() for (batch,) in again.batches(fresh)] == second
    assert (second != first) == (name not in ("in order", "a list"))


def test_saved_at_the_last_batch_the_next_epoch_follows() -> None:
    torch.manual_seed(5)
    straight = take(DataPosition(), LOADERS["shuffled"](), 20)
    assert resumed(LOADERS["shuffled"], 10, 10) == straight


def test_a_run_that_never_watched_a_loader() -> None:
    position = DataPosition()
    other = DataPosition()
    other.load_state_dict(position.state_dict())
    torch.manual_seed(1)
    first = take(other, LOADERS["shuffled"](), 10)
    torch.manual_seed(1)
    assert take(DataPosition(), LOADERS["shuffled"](), 10) == first
