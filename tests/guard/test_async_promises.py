"""The promises hold with sync=False, under LBFGS, and for a scheduler that is made in a watched body."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
from trials.bits import bits, differing, finite
from trials.tables import OPTIMIZERS, Registers

from guard.small_training import INF, NAN, Training, assert_same, batches, spoiled
from stayfinite import Guard, RunStopped

DATA = batches(6)
FUSED: list[Any] = [
    pytest.param(lambda p: SGD(p, 0.05, fused=True), id="SGD"),
    pytest.param(lambda p: SGD(p, 0.05, momentum=0.9, fused=True), id="momentum"),
    pytest.param(lambda p: SGD(p, 0.05, momentum=0.9, nesterov=True, fused=True), id="nesterov"),
    pytest.param(lambda p: SGD(p, 0.05, momentum=0.9, dampening=0.5, fused=True), id="dampening"),
    pytest.param(lambda p: Adam(p, 0.01, fused=True), id="Adam"),
    pytest.param(lambda p: AdamW(p, 0.01, amsgrad=True, fused=True), id="amsgrad"),
    pytest.param(
        lambda p: Adagrad(p, 0.05, fused=True),
        id="Adagrad",
        marks=pytest.mark.skipif("adagrad fused" not in OPTIMIZERS, reason="torch 2.6: it cannot skip"),
    ),
]
Make = Callable[[Any], Optimizer]


def unseen(training: Training, folder: Path, data: list[Tensor], **options: Any) -> Guard:
    guard = training.guard(folder, sync=False, **options)
    for x in data:
        guard.step(lambda x=x: training.loss(x))
    guard.settle()
    return guard


@pytest.mark.parametrize("make", FUSED)
@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("dropout", [0.3, pytest.param(0.0, marks=pytest.mark.long)])
def test_a_bad_batch_has_not_been_there(tmp_path: Path, make: Make, at: int, dropout: float) -> None:
    """Also the very first, when momentum has no memory yet; with dropout the random numbers go back, too."""
    training = Training(make, dropout)
    data = [*DATA[:at], spoiled(DATA[at]), *DATA[at:]]
    guard = unseen(training, tmp_path, data)
    assert_same(training.bits(), Training(make, dropout).train(DATA))
    assert (guard.counters.applied, guard.counters.skipped) == (6, 1)


@pytest.mark.parametrize("make", FUSED[1:2])
def test_two_bad_batches_in_a_row_at_the_start(tmp_path: Path, make: Make) -> None:
    training = Training(make, 0.3)
    unseen(training, tmp_path, [spoiled(DATA[0]), spoiled(DATA[1], INF), *DATA])
    assert_same(training.bits(), Training(make, 0.3).train(DATA))


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("at", [0, 2])
def test_buffers_registered_in_the_first_forward_pass(tmp_path: Path, sync: bool, at: int) -> None:
    def make() -> tuple[Registers, Optimizer]:
        torch.manual_seed(0)
        model = Registers()
        return model, Adam(model.parameters(), 0.01, fused=True)

    model, optimizer = make()
    guard = Guard(model, optimizer, run_dir=tmp_path, sync=sync, quiet=True)
    for x in [*DATA[:at], spoiled(DATA[at]), *DATA[at:]]:
        guard.step(lambda x=x: model(x).square().mean())
    guard.settle()
    found = bits(model=model, optimizer=optimizer)
    model, optimizer = make()
    for x in DATA:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert differing(found, bits(model=model, optimizer=optimizer)) == []


@pytest.mark.parametrize("rate", [NAN, INF])
def test_a_learning_rate_that_is_not_finite(tmp_path: Path, rate: float) -> None:
    make: Make = FUSED[1].values[0]
    training = Training(make)
    guard = training.guard(tmp_path, sync=False)
    for number, x in enumerate(DATA):
        guard.settle()
        group = training.optimizer.param_groups[0]
        good = group["lr"]
        if number == 2:
            group["lr"] = rate
        guard.step(lambda x=x: training.loss(x))
        if number == 2:
            group["lr"] = good
    guard.close()
    assert finite(training.bits())
    assert_same(training.bits(), Training(make).train(DATA[:2] + DATA[3:]))


def test_an_exception_leaves_nothing_pending(tmp_path: Path) -> None:
    make: Make = FUSED[1].values[0]
    training = Training(make)
    guard = unseen(training, tmp_path, DATA[:3])

    def fails() -> Tensor:
        training.loss(DATA[5])
        raise KeyError("left")

    with pytest.raises(KeyError):
        guard.step(fails)
    assert not training.has_gradients
    for x in DATA[3:]:
        guard.step(lambda x=x: training.loss(x))
    guard.settle()
    assert_same(training.bits(), Training(make).train(DATA), generators=False)


@pytest.mark.parametrize("end", ["save", "close"])
def test_a_bad_last_batch_is_gone_before_the_end(tmp_path: Path, end: str) -> None:
    make: Make = FUSED[4].values[0]
    training = Training(make, 0.3)
    guard = training.guard(tmp_path, sync=False)
    for x in [*DATA, spoiled(DATA[0])]:
        guard.step(lambda x=x: training.loss(x))
    guard.close() if end == "close" else guard.save(tmp_path / "a.pt")
    assert_same(training.bits(), Training(make, 0.3).train(DATA))


# -- LBFGS


def lbfgs(search: str | None) -> Make:
    return lambda p: LBFGS(p, 0.2, max_iter=4, history_size=3, line_search_fn=search)


def lbfgs_body(training: Training, x: Tensor, added: float = 0.0) -> None:
    def closure() -> Tensor:
        training.optimizer.zero_grad()
        loss = training.loss(x) + added
        loss.backward()
        return loss

    training.optimizer.step(closure)
    training.advance()


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize(
    "fault",
    [
        "NaN in the batch",
        "NaN added",
        pytest.param("Inf in the batch", marks=pytest.mark.long),
        pytest.param("Inf added", marks=pytest.mark.long),
    ],
)
def test_lbfgs_refuses_a_bad_loss(tmp_path: Path, way: str, search: str | None, at: int, fault: str) -> None:
    """Refused, and as if the batch had not been there. A NaN that is added leaves the gradients finite: torch's line
    search then raises an IndexError."""
    value = NAN if "NaN" in fault else INF
    training = Training(lbfgs(search))
    guard = training.guard(tmp_path, locate=False)
    bad = spoiled(DATA[at], value) if "batch" in fault else DATA[at].clone()
    data = [*DATA[:at], bad, *DATA[at:]]
    for x in data if way == "step" else guard.watch(data):
        added = value if x is bad and "added" in fault else 0.0
        if way == "step":
            guard.step(lambda x=x, a=added: training.loss(x) + a)
        else:
            lbfgs_body(training, x, added)
    found, plain = training.bits(), Training(lbfgs(search))
    for x in DATA:
        lbfgs_body(plain, x)
    assert_same(found, plain)
    assert (guard.counters.applied, guard.counters.skipped) == (6, 1)


def test_lbfgs_whose_third_evaluation_is_bad(tmp_path: Path) -> None:
    """It has moved the weights by then. (A line search may try a bad point and turn away from it; this has none.)"""
    search = None
    training = Training(lbfgs(search))
    guard = training.guard(tmp_path, locate=False)
    calls = 0

    def third_is_bad() -> Tensor:
        nonlocal calls
        calls += 1
        return training.loss(DATA[0]) * (NAN if calls == 3 else 1.0)

    for number, x in enumerate(DATA):
        if number == 3:
            assert guard.step(third_is_bad).applied is False
        guard.step(lambda x=x: training.loss(x))
    found, plain = training.bits(), Training(lbfgs(search))
    for x in DATA:
        lbfgs_body(plain, x)
    assert_same(found, plain)


def test_lbfgs_that_always_fails_stops_as_any_other_run(tmp_path: Path) -> None:
    training = Training(lbfgs("strong_wolfe"))
    guard = training.guard(tmp_path, locate=False)
    before = training.bits(generators=False)
    with pytest.raises(RunStopped):
        for x in batches(30):
            guard.step(lambda x=x: training.loss(x * NAN))
    assert [n for n in differing(before, training.bits(generators=False)) if "lr" not in n] == []


# -- a scheduler that is made in the body


@pytest.mark.parametrize("kind", [StepLR, CosineAnnealingLR])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("bad", [None, 4])
def test_a_scheduler_made_inside_a_watched_body(
    tmp_path: Path, kind: Callable[[Optimizer, int], Any], first: int, bad: int | None
) -> None:
    """As scripts do that need the number of steps first. The guard does not know it, so a skip advances it."""

    def train(watch: Callable[[list[Tensor]], Any], *, sees_bad: bool) -> tuple[nn.Module, Optimizer, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
        if guards is not None:
            guards.append(Guard(model, optimizer, run_dir=tmp_path, locate=False, quiet=True))
        scheduler = None
        for number, x in enumerate(watch(DATA)):
            if scheduler is None and number == first:
                scheduler = kind(optimizer, 3)
            optimizer.zero_grad()
            if number != bad or sees_bad:
                (model(x).square().mean() * (NAN if number == bad else 1.0)).backward()
                optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return model, optimizer, scheduler

    guards: list[Guard] | None = []
    model, optimizer, scheduler = train(lambda data: guards[0].watch(data), sees_bad=True)  # type: ignore[index]
    found = bits(model=model, optimizer=optimizer, scheduler=scheduler)
    count = guards[0].counters
    assert (count.applied, count.skipped) == ((6, 0) if bad is None else (5, 1))
    guards = None
    model, optimizer, scheduler = train(lambda data: data, sees_bad=False)
    assert differing(found, bits(model=model, optimizer=optimizer, scheduler=scheduler)) == []
    assert finite(found)
