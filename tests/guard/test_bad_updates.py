"""Updates that are bad by themselves, from finite gradients: undone in the same step or the next, before any save."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, RMSprop
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from trials.bits import bits, differing, finite

from guard.small_training import INF, NAN, Training, assert_same, batches
from stayfinite import Guard, RunStopped
from stayfinite.recover import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # what the guard says of a save that is due
DATA = batches(9)
MOMENTS: list[Any] = [
    pytest.param(lambda p: SGD(p, 0.05, momentum=0.9), id="momentum"),
    pytest.param(lambda p: Adam(p, 0.01), id="Adam"),
]


# -- the learning rate


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("rate", [NAN, INF, -INF])
@pytest.mark.parametrize("kind", MOMENTS)
def test_a_learning_rate_the_user_sets(
    tmp_path: Path, way: str, rate: float, kind: Callable[[Any], torch.optim.Optimizer]
) -> None:
    """For one batch the rate is not finite: as if that batch had not been there."""
    training = Training(kind)
    guard = training.guard(tmp_path, locate=False)
    groups = training.optimizer.param_groups
    for number, x in enumerate(DATA if way == "step" else guard.watch(DATA)):
        good = groups[0]["lr"]
        if number == 4:
            groups[0]["lr"] = rate
        if way == "step":
            assert guard.step(lambda x=x: training.loss(x)).applied is (number != 4)
        else:
            training.body(x)
        if number == 4:
            assert finite(training.bits()), "the state is bad although the learning rate tells beforehand"
            groups[0]["lr"] = good
    assert_same(training.bits(), Training(kind).train(DATA[:4] + DATA[5:]))
    assert (guard.counters.applied, guard.counters.skipped) == (8, 1)


def test_a_learning_rate_in_a_tensor(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    rate = torch.tensor(0.01)
    optimizer = Adam(model.parameters(), rate, capturable=False, foreach=False)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)
    for number, x in enumerate(DATA):
        rate.fill_(NAN if number == 4 else 0.01)
        assert guard.step(lambda x=x: model(x).square().mean()).applied is (number != 4)
        assert guard.bad_state() == []


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("rate", [NAN, INF])
def test_a_learning_rate_from_a_scheduler(tmp_path: Path, way: str, rate: float) -> None:
    """The schedule is not finite from its third step on: no weight moves by it, and the run stops or is repaired."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda step: rate if step == 3 else 1.0)
    guard = Guard(model, optimizer, scheduler, run_dir=tmp_path, quiet=True)
    try:
        for x in batches(30) if way == "step" else guard.watch(batches(30)):
            if way == "step":
                guard.step(lambda x=x: model(x).square().mean())
            else:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                scheduler.step()
            assert finite(bits(model=model, optimizer=optimizer))
    except RunStopped as stopped:
        assert "learning rate" in str(stopped)
    else:
        assert guard.counters.applied > 15
    assert finite(bits(model=model)) and guard.bad_state() == []


# -- moments that somebody corrupted


def poison_moment(training: Training) -> None:
    entry = training.optimizer.state[training.model[0].weight]
    name = "momentum_buffer" if "momentum_buffer" in entry else "exp_avg"
    entry[name].view(-1)[3] = NAN


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("make", MOMENTS)
@pytest.mark.parametrize("after", ["more steps", "save", "close", "restore"])
def test_a_corrupted_moment(tmp_path: Path, way: str, make: Any, after: str) -> None:
    """The update it poisons is gone in the next step, and before a save, a close and a restore of what was saved."""
    training = Training(make)
    guard = training.guard(tmp_path)
    bad_in_a_row = 0

    def go(data: list[Tensor]) -> None:
        nonlocal bad_in_a_row
        for x in data if way == "step" else guard.watch(data):
            bad_in_a_row = 0 if finite(training.bits()) else bad_in_a_row + 1
            assert bad_in_a_row < 3, (
                "the moment was bad before a step, and the state for more than one after it"
            )
            if way == "step":
                guard.step(lambda x=x: training.loss(x))
            else:
                training.body(x)

    go(DATA[:4])
    poison_moment(training)
    go(DATA[4:5])
    path = tmp_path / "a.pt"
    if after == "more steps":
        go(DATA[5:])
    elif after == "close":
        guard.close()
    else:
        guard.save(path)
    assert guard.bad_state() == [] and finite(training.bits())
    if after == "restore":
        again = Training(make)
        again.guard(tmp_path / "again").restore(path)
        assert finite(again.bits())


# -- optimizers whose own arithmetic fails


class Quotient(torch.optim.Optimizer):
    """A user's own optimizer that divides by the gradient's size: 0 / 0 where a gradient is 0."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad / p.grad.abs())
                    self.state[p]["count"] = self.state[p].get("count", 0) + 1


class Linear(nn.Module):
    """The loss is linear in the weight, so the batch is the gradient."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).sum()


CASES: dict[str, tuple[torch.dtype, Callable[[Any], torch.optim.Optimizer], list[Tensor]]] = {
    "centered RMSprop": (
        torch.float32,
        lambda p: RMSprop(p, 1e-3, alpha=0.5, centered=True),
        [torch.linspace(0.3, 0.6, 8)] * 40,
    ),
    "half momentum": (
        torch.float16,
        lambda p: SGD(p, 1e-4, momentum=0.9),
        # the twelfth makes the momentum overflow; no gradient is anywhere near that
        [torch.full((8,), v, dtype=torch.float16) for v in [9000.0] * 14 + [-9000.0] * 3],
    ),
    "an optimizer nobody knows": (
        torch.float32,
        Quotient,
        [torch.linspace(0.5, 1.0, 8)] * 3 + [torch.linspace(0, 1.0, 8)] + [torch.linspace(0.5, 1.0, 8)] * 4,
    ),
    "finite, but squared it is not": (
        torch.float32,
        lambda p: Adam(p, 1e-3),
        [torch.full((8,), v) for v in (1.0, 2.0, 3e19, 1.0, 2.0, 1.0)],
    ),
}


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("name", CASES)
def test_an_update_that_is_bad_in_itself(tmp_path: Path, way: str, name: str) -> None:
    """Not there in the next step at the latest: the bits are those of a run that never made the bad updates."""
    dtype, make, data = CASES[name]
    model = Linear(8, dtype)
    optimizer = make(model.parameters())
    guard = Guard(model, optimizer, run_dir=tmp_path, policy="skip", locate=False, quiet=True)
    good, bad_in_a_row = _Moment(model, optimizer), 0
    with suppress(RunStopped):  # it fails for ever: a reason to stop, not to go on with NaN
        for x in data if way == "step" else guard.watch(data):
            expected = good.after(x)
            if way == "step":
                guard.step(lambda x=x: model(x))
            else:
                optimizer.zero_grad()
                model(x).backward()
                optimizer.step()
            now = _Moment(model, optimizer)
            bad_in_a_row = 0 if finite(now.bits) else bad_in_a_row + 1
            assert bad_in_a_row < 2, "bad for more than one step"
            if not bad_in_a_row:
                undone, made = differing(now.bits, good.bits), differing(now.bits, expected.bits)
                assert not undone or not made, f"neither undone ({undone}) nor made ({made})"
                good = now
    guard.close()
    assert finite(_Moment(model, optimizer).bits) and guard.bad_state() == []


class _Moment:
    """A model and its optimizer as they are now, and what an update would make of them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.bits = bits(model=model, optimizer=optimizer, generators=False)
        self._copy = copy.deepcopy((model, optimizer))

    def after(self, x: Tensor) -> _Moment:
        model, optimizer = copy.deepcopy(self._copy)
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        return _Moment(model, optimizer)


# -- saves and restores look at numbers, too


def with_everything(folder: Path) -> tuple[Training, Guard, torch.amp.GradScaler]:
    training = Training(lambda p: Adam(p, 0.01, weight_decay=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    guard = training.guard(folder, scaler=scaler)
    for x in DATA[:3]:
        guard.step(lambda x=x: training.loss(x))
    return training, guard, scaler


def set_scale(scaler: torch.amp.GradScaler, value: float) -> None:
    scaler.load_state_dict({**scaler.state_dict(), "scale": value})


SPOIL: dict[str, Callable[[Training, torch.amp.GradScaler, float], None]] = {
    "lr": lambda t, s, v: t.optimizer.param_groups[0].update(lr=v),
    "initial_lr": lambda t, s, v: t.optimizer.param_groups[0].update(initial_lr=v),
    "weight_decay": lambda t, s, v: t.optimizer.param_groups[0].update(weight_decay=v),
    "betas": lambda t, s, v: t.optimizer.param_groups[0].update(betas=(0.9, v)),
    "eps": lambda t, s, v: t.optimizer.param_groups[0].update(eps=v),
    "base_lrs": lambda t, s, v: setattr(t.scheduler, "base_lrs", [v]),
    "scale": lambda t, s, v: set_scale(s, v),
}


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("name", SPOIL)
def test_a_number_that_is_not_finite_is_not_saved(tmp_path: Path, name: str, value: float) -> None:
    training, guard, scaler = with_everything(tmp_path)
    path = guard.save(tmp_path / "a.pt")
    whole = path.read_bytes()
    SPOIL[name](training, scaler, value)
    with pytest.raises(CheckpointError, match=name.rstrip("s")):
        guard.save(path)
    assert path.read_bytes() == whole, "the older checkpoint is untouched"


def replace_numbers(value: Any, name: str, by: float) -> Any:
    """The same payload with every number under this name replaced."""
    if isinstance(value, dict):
        return {
            key: _replaced(item, by) if key == name else replace_numbers(item, name, by)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(replace_numbers(item, name, by) for item in value)
    return value


def _replaced(item: Any, by: float) -> Any:
    return type(item)(by for _ in item) if isinstance(item, (list, tuple)) else by


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("name", SPOIL)
def test_a_number_that_is_not_finite_is_not_restored(tmp_path: Path, name: str, value: float) -> None:
    _, guard, _ = with_everything(tmp_path / "first")
    path = guard.save(tmp_path / "a.pt")
    payload = torch.load(path, weights_only=True)
    torch.save(replace_numbers(payload, name, value), path)
    training, guard, scaler = with_everything(tmp_path / "second")
    before, scale = training.bits(), scaler.state_dict()
    with pytest.raises(CheckpointError, match=name.rstrip("s")):
        guard.restore(path)
    assert differing(before, training.bits()) == [] and scaler.state_dict() == scale


def test_infinities_that_belong_there_are_saved_and_restored(tmp_path: Path) -> None:
    """A plateau schedule has seen nothing better than infinity yet."""
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), 0.1)
    scheduler = ReduceLROnPlateau(optimizer)
    assert scheduler.best == math.inf
    guard = Guard(model, optimizer, scheduler, scheduler_interval="epoch", run_dir=tmp_path, quiet=True)
    guard.step(lambda: model(DATA[0]).square().mean())
    guard.restore(guard.save(tmp_path / "a.pt"))
    assert scheduler.best == math.inf


# -- the loss scale


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("value", [INF, NAN])
def test_a_loss_scale_that_is_not_finite(tmp_path: Path, way: str, value: float) -> None:
    """Halving infinity does not help: the scale is repaired, or the run stops and says so, and soon."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    guard = Guard(model, optimizer, scaler=scaler, run_dir=tmp_path, locate=False, quiet=True)
    try:
        data = batches(30)
        for number, x in enumerate(data if way == "step" else guard.watch(data)):
            if number == 4 and math.isfinite(scaler.get_scale()) and guard.counters.applied == 4:
                set_scale(scaler, value)
            if way == "step":
                guard.step(lambda x=x: model(x).square().mean())
            else:
                optimizer.zero_grad()
                scaler.scale(model(x).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
    except RunStopped as stopped:
        assert "loss scale" in str(stopped)
    else:
        assert math.isfinite(scaler.get_scale())
        assert guard.counters.applied > 15
        assert "loss scale" in (tmp_path / "run.jsonl").read_text(), "it is not on record"
    assert guard.bad_state() == []


def test_a_step_schedule_that_divides_by_zero_is_no_reason_to_lose_the_weights(tmp_path: Path) -> None:
    """gamma = inf: 0.05, then inf. The weights of the last good step stay."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), 0.05)
    scheduler = StepLR(optimizer, 3, INF)
    guard = Guard(model, optimizer, scheduler, run_dir=tmp_path, policy="skip", quiet=True)
    kept: list[dict[str, Any]] = []
    with pytest.raises(RunStopped, match="learning rate"):
        for x in batches(30):
            kept.append(bits(model=model, generators=False))
            guard.step(lambda x=x: model(x).square().mean())
    assert differing(bits(model=model, generators=False), kept[3]) == []


# -- what a script finds after a refused update


@pytest.mark.parametrize("expanded", [False, True], ids=["usual", "one number for all"])
def test_gradients_of_a_refused_update_can_still_be_read(tmp_path: Path, expanded: bool) -> None:
    """A norm or a histogram of `p.grad` after the step is usual."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = SGD([weight], 0.1, momentum=0.9)
    guard = Guard(nn.ParameterList([weight]), optimizer, run_dir=tmp_path, quiet=True, locate=False)
    for number, x in enumerate(guard.watch([torch.tensor(v) for v in (1.0, NAN, 1.0)])):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        if expanded:
            weight.grad = torch.full((1,), float(x)).expand(3)
        before = weight.detach().clone()
        optimizer.step()
        if number == 1:
            assert torch.equal(weight, before)
            assert weight.grad is not None and torch.equal(weight.grad, torch.zeros(3))
    assert (guard.counters.applied, guard.counters.skipped) == (2, 1)


def test_a_moment_that_was_bad_before_is_not_the_update_s(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = Adam([weight], 0.1)
    weight.sum().backward()
    optimizer.step()
    optimizer.state[weight]["exp_avg"][1] = NAN
    guard = Guard(nn.ParameterList([weight]), optimizer, run_dir=tmp_path, quiet=True, locate=False)
    with pytest.raises(
        RunStopped, match=r"made 0 non-finite \(Adam\[0\].exp_avg held NaN or Inf before it\)"
    ):
        guard.step(lambda: weight.sum())
