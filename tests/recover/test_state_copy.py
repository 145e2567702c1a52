"""StateCopy: the whole training state, or some optimizers' part of it, put back bit for bit. More than once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.swa_utils import AveragedModel

from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import StateCopy


class Model(nn.Module):
    """Batch norm, a buffer that is reassigned in every forward pass, and an integer counter."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).to(dtype)
        self.head = nn.Linear(4, 1).to(dtype)
        self.register_buffer("mean", torch.zeros(4, dtype=dtype))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        self.cache.add_(1)
        return self.head(hidden)


class HalfWithFloat32Moments(Optimizer):
    """Momentum in float32 for half parameters, and a new tensor at every step, as some libraries do it."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["calls"] = state.get("calls", 0) + 1
                state["moment"] = state.get("moment", torch.zeros_like(parameter, dtype=torch.float32)) * 0.9
                state["moment"] += parameter.grad.float()
                parameter.sub_((group["lr"] * state["moment"]).to(parameter.dtype))


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "Adam": lambda p: Adam(p, 0.01),
    "Adam amsgrad": lambda p: Adam(p, 0.01, amsgrad=True),
    "AdamW with a rate tensor": lambda p: AdamW(p, torch.tensor(0.01)),
    "SGD": lambda p: SGD(p, 0.1),
    "SGD momentum": lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True),
    "RMSprop centered": lambda p: RMSprop(p, 0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: Adagrad(p, 0.01),
    "LBFGS": lambda p: LBFGS(p, 0.1, max_iter=3),
    "float32 moments": HalfWithFloat32Moments,
}


def train(model: nn.Module, optimizer: Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(8, 3, generator=generator).to(dtype)

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def everything(state: TrainingState) -> dict[str, Any]:
    """A deep and independent picture of the state, to compare by bits."""
    return {
        "tensors": {f"{kind} {name}": t.detach().clone() for kind, name, t in state.tensors()},
        "optimizers": [copy.deepcopy(o.state_dict()) for o in state.optimizers],
        "schedulers": [copy.deepcopy(s.state_dict()) for s in state.schedulers],
    }


def same(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            isinstance(two, Tensor)
            and one.dtype == two.dtype
            and torch.equal(
                one.contiguous().view(-1).view(torch.uint8), two.contiguous().view(-1).view(torch.uint8)
            )
        )
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_put_back_bit_for_bit_again_and_again(name: str, before: int, dtype: torch.dtype) -> None:
    """`before=0`: the first step creates the state, so going back means that it is gone again."""
    torch.manual_seed(0)
    model = Model(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    state = TrainingState(model, optimizer)
    train(model, optimizer, before, seed=1)
    kept = StateCopy(state, device="cpu")
    kept.take()
    good = everything(state)
    for seed in (2, 3, 4):
        train(model, optimizer, 2, seed)
        assert not same(everything(state), good)
        kept.restore()
        assert same(everything(state), good)
    train(model, optimizer, 2, seed=9)
    onward = everything(state)
    kept.restore()
    train(model, optimizer, 2, seed=9)
    assert same(everything(state), onward), "the run goes on from the copy as it would have"


def test_schedulers_groups_and_averages_belong_to_it() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=50)
    average = AveragedModel(model, use_buffers=True)
    state = TrainingState(model, optimizer, scheduler, ema=average)

    def step(seed: int) -> None:
        train(model, optimizer, 1, seed)
        scheduler.step()
        average.update_parameters(model)

    step(1)
    kept = StateCopy(state)
    kept.take()
    good = everything(state)
    step(2), step(3)
    optimizer.param_groups[0]["added_later"] = 1
    kept.restore()
    assert same(everything(state), good)
    assert "added_later" not in optimizer.param_groups[0]
    assert int(average.n_averaged) == 1


def test_the_tensors_stay_the_same_objects() -> None:
    """DDP, compiled and capturable code hold on to them: the copy goes into them."""
    model = Model()
    optimizer = AdamW(model.parameters(), torch.tensor(0.01))
    state = TrainingState(model, optimizer)
    train(model, optimizer, 1, seed=1)
    rate, objects = optimizer.param_groups[0]["lr"], [t for _, _, t in state.tensors() if t is not model.mean]
    kept = StateCopy(state)
    kept.take()
    train(model, optimizer, 1, seed=2)
    with torch.no_grad():
        rate.mul_(0.5)
    kept.restore()
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.01)
    assert all(any(t is o for o in objects) for _, _, t in state.tensors() if t is not model.mean)


def test_only_some_optimizers() -> None:
    model = Model()
    body, head = SGD(model.body.parameters(), 0.1, momentum=0.9), Adam(model.head.parameters(), 0.1)
    state = TrainingState(model, [body, head])
    kept = StateCopy(state, optimizers=[head])
    kept.take()
    before = copy.deepcopy(model.state_dict())
    loss = model(torch.randn(8, 3)).square().mean()
    loss.backward()
    body.step(), head.step()
    kept.restore()
    assert same(model.head.state_dict(), {k[5:]: v for k, v in before.items() if k.startswith("head.")})
    assert not same(model.body[0].weight.data, before["body.0.weight"])
    assert len(head.state) == 0 and len(body.state) > 0


def test_taking_again_reuses_the_memory() -> None:
    model = Model()
    optimizer = Adam(model.parameters(), 0.1)
    state = TrainingState(model, optimizer)
    train(model, optimizer, 1, seed=1)
    kept = StateCopy(state)
    kept.take()
    weight = model.head.weight
    mine = kept._store[id(weight)][1].data_ptr()
    train(model, optimizer, 1, seed=2)
    kept.take()
    assert kept._store[id(weight)][1].data_ptr() == mine
    assert sum(saved.nbytes for _, saved in kept._store.values()) == state.nbytes()


def test_an_incomplete_copy_is_never_restored() -> None:
    model = Model()
    kept = StateCopy(TrainingState(model, SGD(model.parameters(), 0.1)))
    with pytest.raises(RuntimeError, match="incomplete"):
        kept.restore()


def test_names_are_the_users_own() -> None:
    one, two = Model(), nn.Linear(2, 2)
    stray = nn.Parameter(torch.ones(1))
    optimizer = Adam([*one.parameters(), *two.parameters(), stray], 0.1)
    state = TrainingState({"net": one, "critic": two}, optimizer, ema=[AveragedModel(two)])
    names = [name for _, name, _ in state.tensors()]
    assert {"net.head.weight", "critic.bias", "net.body.1.running_mean", "net.cache"} <= set(names)
    assert "optimizer0.group0.param8" in names and "ema.module.weight" in names
    assert len(names) == len(set(names))
