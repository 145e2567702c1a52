"""Transaction: after a refused step the buffers are as before it, however the step changed them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stayfinite.recover.state import TrainingState
from stayfinite.recover.transaction import SMALL, Transaction

NAN = float("nan")


class Buffers(nn.Module):
    """One buffer of every kind that a forward pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("queue", torch.zeros(SMALL + 1))
        self.register_buffer("replaced", torch.zeros(3))
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("empty", None)
        self.register_buffer("made", None)
        self.lazily = False

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        self.queue[:8] = y.detach().sum()
        self.replaced = self.replaced + y.detach().sum()
        self.grown = torch.cat([self.grown, y.detach().sum().reshape(1)])
        if self.made is None:
            self.made = y.detach().sum()
        if self.lazily:
            if "lazy" not in self._buffers:
                self.register_buffer("lazy", torch.zeros(1))
            self.lazy.add_(y.detach().sum())
        return y.sum()


def snapshot(model: nn.Module) -> dict[str, Tensor | None]:
    return {
        f"{path}.{key}": value.clone() if value is not None else None
        for path, module in model.named_modules()
        for key, value in module._buffers.items()
    }


def same(one: dict[str, Tensor | None], two: dict[str, Tensor | None]) -> bool:
    if one.keys() != two.keys():
        return False
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in ((one[key], two[key]) for key in one)
    )


def make() -> tuple[Buffers, Transaction]:
    torch.manual_seed(0)
    model = Buffers()
    return model, Transaction(TrainingState(model, torch.optim.SGD(model.parameters(), 0.1)))


@pytest.mark.parametrize("healthy_before", [0, 1, 2, 5, 130])
def test_every_kind_of_buffer_is_put_back(healthy_before: int) -> None:
    model, transaction = make()
    for _ in range(healthy_before):
        transaction.begin()
        model(torch.randn(4, 2))
    before = snapshot(model)
    for _ in range(2):
        transaction.begin()
        model(torch.full((4, 2), NAN))
        assert not same(snapshot(model), before)
        transaction.undo(restore_rng=False)
        assert same(snapshot(model), before)
    transaction.begin()
    model(torch.randn(4, 2))
    assert all(value is None or bool(value.isfinite().all()) for value in snapshot(model).values())


@pytest.mark.parametrize("registered_at", [0, 1, 2, 3, 50])
@pytest.mark.parametrize("steps_later", [0, 1, 2, 40])
def test_a_buffer_registered_in_the_middle_of_a_run_is_protected(
    registered_at: int, steps_later: int
) -> None:
    """Position tables and running statistics are often made in the first forward pass that needs them."""
    model, transaction = make()
    for step in range(registered_at + steps_later):
        transaction.begin()
        model.lazily = step >= registered_at
        model(torch.randn(4, 2))
    before = snapshot(model)
    model.lazily = True
    transaction.begin()
    model(torch.full((4, 2), NAN))
    transaction.undo(restore_rng=False)
    assert same(snapshot(model), before)


def test_a_large_buffer_is_copied_only_when_it_changed() -> None:
    model, transaction = make()
    transaction.begin()
    (slot,) = [slot for slot in transaction._slots if slot.key == "queue"]
    assert slot.saved is not None
    saved_version = slot.saved._version
    transaction.begin()
    assert slot.saved._version == saved_version
    model.queue[0] = 1.0
    transaction.begin()
    assert slot.saved._version > saved_version and slot.saved[0] == 1.0


def test_a_large_buffer_that_was_undone_is_right_the_next_time_too() -> None:
    model, transaction = make()
    for value in (1.0, 2.0, 3.0):
        model.queue.fill_(value)
        for _ in range(2):
            transaction.begin()
            model.queue.fill_(NAN)
            transaction.undo(restore_rng=False)
            assert bool((model.queue == value).all())


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_generators_go_back_if_asked() -> None:
    _, transaction = make()
    transaction.begin()
    first = draw()
    transaction.undo(restore_rng=True)
    assert draw() == first
    transaction.begin()
    first = draw()
    transaction.undo(restore_rng=False)
    assert draw() != first


@pytest.mark.parametrize("bad", [True, False])
def test_undone_on_the_device_without_asking_the_host(bad: bool) -> None:
    model, transaction = make()
    model.queue.fill_(1.0)
    transaction.begin()
    with torch.no_grad():
        model.queue.fill_(5.0)
        model.norm.running_mean.fill_(NAN if bad else 7.0)  # type: ignore[union-attr]
    transaction.undo_where(torch.tensor(bad))
    assert bool((model.queue == (1.0 if bad else 5.0)).all())
    assert bool((model.norm.running_mean == (0.0 if bad else 7.0)).all())


def test_a_bad_update_is_undone_with_the_moments() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    transaction = Transaction(TrainingState(model, optimizer))
    weight = model.weight.detach().clone()
    for _ in range(2):
        transaction.begin()
        model(torch.ones(1, 2)).sum().backward()
        transaction.copy_before_update([optimizer])
        optimizer.step()
        with torch.no_grad():
            optimizer.state[model.weight]["exp_avg"].fill_(NAN)
        transaction.undo_update([optimizer])
        assert torch.equal(model.weight, weight) and len(optimizer.state) == 0
