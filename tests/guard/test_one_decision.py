"""One loss, one decision: all optimizers a backward pass reached are applied or refused together, and counted once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from trials.bits import bits, differing

from guard.small_training import INF, NAN, batches
from stayfinite import Guard, Policy, RunStopped

DATA = batches(8)
BAD = 4


class Halves:
    """One network whose body and head have an optimizer each. The gradient of one of them can be spoiled."""

    def __init__(self, order: str = "body first", scaled: bool = False) -> None:
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.head = nn.Linear(6, 1)
        self.model = nn.Sequential(self.body, self.head)
        self.optimizers = [
            SGD(self.body.parameters(), 0.05, momentum=0.9),
            Adam(self.head.parameters(), 0.01),
        ]
        if order == "head first":
            self.optimizers.reverse()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if scaled else None
        self.spoil = 1.0
        self.head.weight.register_hook(lambda gradient: gradient * self.spoil)

    def guard(self, folder: Path, **options: Any) -> Guard:
        options = {"run_dir": folder, "quiet": True, "scaler": self.scaler, **options}
        return Guard(self.model, self.optimizers, **options)

    def loss(self, x: Tensor) -> Tensor:
        return self.model(x).square().mean()

    def loop(self, data: Iterable[Tensor], bad: Callable[[Tensor], bool]) -> Halves:
        for x in data:
            self.spoil = NAN if bad(x) else 1.0
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            if self.scaler is None:
                self.loss(x).backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                continue
            self.scaler.scale(self.loss(x)).backward()
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        return self

    def bits(self) -> dict[str, Any]:
        return bits(model=self.model, optimizers=self.optimizers)


def is_bad(x: Tensor) -> bool:
    return x is DATA[BAD]


def without_the_bad(order: str = "body first") -> dict[str, Any]:
    return Halves(order).loop([x for x in DATA if not is_bad(x)], is_bad).bits()


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return [line for line in found if "event" not in line]


@pytest.mark.parametrize("way", ["watch", "step"])
@pytest.mark.parametrize("order", ["body first", "head first"])
@pytest.mark.parametrize("locate", [False, True])
def test_only_one_of_two_optimizers_has_the_bad_gradient(
    tmp_path: Path, way: str, order: str, locate: bool
) -> None:
    run = Halves(order)
    guard = run.guard(tmp_path, locate=locate)
    if way == "watch":
        run.loop(guard.watch(DATA), is_bad)
    else:
        for x in DATA:
            run.spoil = NAN if is_bad(x) else 1.0
            assert guard.step(lambda x=x: run.loss(x)).applied is not is_bad(x)
    found = run.bits()
    assert differing(found, without_the_bad(order)) == []
    assert (guard.counters.steps, guard.counters.applied, guard.counters.skipped) == (8, 7, 1)
    guard.close()
    assert [line["action"] for line in lines(tmp_path)] == ["none"] * 4 + ["skip"] + ["none"] * 3


def test_only_one_of_two_optimizers_overflows_under_a_scaler(tmp_path: Path) -> None:
    """The scaler halves its scale by its own rules; the half whose gradients are finite waits with the other."""
    run = Halves(scaled=True)
    guard = run.guard(tmp_path)
    run.loop(guard.watch(DATA), is_bad)
    found = run.bits()
    assert run.scaler is not None and run.scaler.get_scale() == 32.0
    plain = Halves(scaled=True)
    assert plain.scaler is not None
    plain.loop(DATA[:BAD], is_bad)
    plain.loss(DATA[BAD])  # a step that a scaler skips leaves its trace in running statistics, guarded or not
    plain.scaler.load_state_dict({**plain.scaler.state_dict(), "scale": 32.0})
    plain.loop(DATA[BAD + 1 :], is_bad)
    assert differing(found, plain.bits()) == []
    assert (guard.counters.applied, guard.counters.backoffs, guard.counters.skipped) == (7, 1, 0)


def test_the_ladder_counts_decisions(tmp_path: Path) -> None:
    """Two optimizers refused for one loss are one failure: five bad batches are not yet the tenth failure."""
    run = Halves()
    guard = run.guard(tmp_path, policy=Policy(lower_lr_after=None, rollback_after=None, stop_after=6))
    run.loop(guard.watch(DATA[:5]), lambda _: True)
    assert (guard.counters.skipped, guard.counters.steps, guard.step_count) == (5, 5, 5)
    with pytest.raises(RunStopped, match="6 failures in a row"):
        run.loop(guard.watch(DATA), lambda _: True)
    assert guard.counters.skipped == 6


def test_two_backward_passes_are_one_update(tmp_path: Path) -> None:
    """Two losses feed one optimizer: if either is bad, neither is applied."""
    found = []
    for which in (0, 1):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
        guard = Guard(model, optimizer, run_dir=tmp_path / str(which), quiet=True)
        for number, x in enumerate(guard.watch(DATA)):
            optimizer.zero_grad()
            for part in (0, 1):
                loss = model(x).square().mean() * (NAN if number == BAD and part == which else 1 + part)
                loss.backward()
            optimizer.step()
        assert (guard.counters.applied, guard.counters.skipped) == (7, 1)
        found.append(bits(model=model, optimizer=optimizer))
    assert differing(*found) == []


# -- a GAN: two losses, two decisions


class Gan:
    def __init__(self, folder: Path, policy: Any = "default", **options: Any) -> None:
        torch.manual_seed(3)
        self.g, self.c = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.of_g, self.of_c = Adam(self.g.parameters(), 1e-2), SGD(self.c.parameters(), 1e-2, momentum=0.9)
        models, optimizers = {"g": self.g, "c": self.c}, [self.of_g, self.of_c]
        options = {"locate": False, "run_dir": folder, "policy": policy, "quiet": True, **options}
        self.guard = Guard(models, optimizers, **options)

    def loss_c(self, x: Tensor) -> Tensor:
        return self.c(x[:, :2]).mean() - self.c(self.g(x).detach()).mean() + self.c(x[:, :2]).square().mean()

    def loss_g(self, x: Tensor) -> Tensor:
        return self.c(self.g(x)).square().mean()

    def turn(self, x: Tensor, spoil_c: float = 1.0, spoil_g: float = 1.0) -> None:
        """A loop body: the critic's turn, then the generator's, whose backward pass reaches the critic, too."""
        self.of_c.zero_grad()
        (self.loss_c(x) * spoil_c).backward()
        self.of_c.step()
        self.of_g.zero_grad()
        (self.loss_g(x) * spoil_g).backward()
        self.of_g.step()

    def steps(self, x: Tensor, spoil_c: float = 1.0, spoil_g: float = 1.0) -> None:
        self.guard.step(lambda: self.loss_c(x) * spoil_c, optimizer=self.of_c)
        self.guard.step(lambda: self.loss_g(x) * spoil_g, optimizer=self.of_g)

    def bits(self) -> dict[str, Any]:
        return bits(g=self.g, c=self.c, of_g=self.of_g, of_c=self.of_c)


@pytest.mark.parametrize("way", ["watch", "step"])
@pytest.mark.parametrize("which", ["spoil_c", "spoil_g"])
def test_success_of_one_does_not_reset_the_failures_of_the_other(
    tmp_path: Path, way: str, which: str
) -> None:
    """One of two networks fails at every batch, the other never: that is a run that fails."""
    gan = Gan(tmp_path, Policy(lower_lr_after=None, rollback_after=None, stop_after=5))
    data = batches(20)
    with pytest.raises(RunStopped, match="5 failures in a row"):
        if way == "watch":
            for x in gan.guard.watch(data):
                gan.turn(x, **{which: NAN})
        else:
            for x in data:
                gan.steps(x, **{which: NAN})
    assert gan.guard.counters.skipped == 5
    assert gan.guard.counters.applied in (4, 5)


@pytest.mark.parametrize("way", ["watch", "step"])
def test_failures_now_of_the_one_now_of_the_other_are_not_in_a_row(tmp_path: Path, way: str) -> None:
    gan = Gan(tmp_path, Policy(lower_lr_after=None, rollback_after=None, stop_after=3))
    data = batches(12)

    def spoil(number: int) -> dict[str, float]:
        return {"spoil_c": NAN} if number % 4 < 2 else {"spoil_g": INF}

    if way == "watch":
        for number, x in enumerate(gan.guard.watch(data)):
            gan.turn(x, **spoil(number))
    else:
        for number, x in enumerate(data):
            gan.steps(x, **spoil(number))
    assert (gan.guard.counters.applied, gan.guard.counters.skipped) == (12, 12)


@pytest.mark.parametrize("locate", [False, True])
def test_a_generator_that_is_refused_leaves_the_critic_alone(tmp_path: Path, locate: bool) -> None:
    """Its backward pass has reached the critic's parameters, but it is not the critic's turn."""
    gan = Gan(tmp_path / "guarded", locate=locate)
    for number, x in enumerate(gan.guard.watch(DATA)):
        gan.turn(x, spoil_g=NAN if number == BAD else 1.0)
    found = gan.bits()
    plain = Gan(tmp_path / "plain")
    for number, x in enumerate(DATA):
        plain.of_c.zero_grad()
        plain.loss_c(x).backward()
        plain.of_c.step()
        if number != BAD:
            plain.of_g.zero_grad()
            plain.loss_g(x).backward()
            plain.of_g.step()
    assert differing(found, plain.bits()) == []
    assert (gan.guard.counters.applied, gan.guard.counters.skipped) == (15, 1)
