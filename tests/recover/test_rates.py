"""Lowering the rate means the whole remaining schedule, for every scheduler of torch."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as schedules

from stayfinite.recover.rates import factors_to, lower_rates, rates_of, scale_rates

Make = Callable[[Optimizer], Any]


def sequential(optimizer: Optimizer) -> Any:
    warm_up = schedules.LinearLR(optimizer, 0.1, total_iters=6)
    return schedules.SequentialLR(
        optimizer, [warm_up, schedules.CosineAnnealingLR(optimizer, 30, eta_min=1e-3)], [6]
    )


def chained(optimizer: Optimizer) -> Any:
    return schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.3, total_iters=8), schedules.ExponentialLR(optimizer, 0.95)]
    )


SCHEDULES: dict[str, Make] = {
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda step: min(1.0, (step + 1) / 10) * 0.99**step),
    "MultiplicativeLR": lambda o: schedules.MultiplicativeLR(o, lambda step: 0.97),
    "StepLR": lambda o: schedules.StepLR(o, 7, 0.5),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, [5, 12, 20], 0.3),
    "ConstantLR": lambda o: schedules.ConstantLR(o, 0.25, total_iters=9),
    "LinearLR": lambda o: schedules.LinearLR(o, 0.2, 1.0, total_iters=15),
    "ExponentialLR": lambda o: schedules.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedules.PolynomialLR(o, 30, 2.0),
    "CosineAnnealingLR": lambda o: schedules.CosineAnnealingLR(o, 15),
    "CosineAnnealingLR with a floor": lambda o: schedules.CosineAnnealingLR(o, 15, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 7, 2, eta_min=0.005),
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, max_lr=[0.5, 0.2], total_steps=40),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 0.01, 0.3, step_size_up=5, cycle_momentum=False),
    "CyclicLR triangular2": lambda o: schedules.CyclicLR(
        o, 0.01, 0.3, 5, mode="triangular2", cycle_momentum=False
    ),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.02, anneal_epochs=10),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(
        o, factor=0.5, patience=2, min_lr=[0.02, 0.01]
    ),
}


def make(name: str, lr: Any = 0.1, kind: type[Optimizer] = SGD) -> tuple[Optimizer, Any]:
    first, second = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    second_lr = lr / 2
    optimizer = kind([{"params": [first]}, {"params": [second], "lr": second_lr}], lr=lr)  # type: ignore[call-arg]
    return optimizer, SCHEDULES[name](optimizer)


def advance(optimizer: Optimizer, scheduler: Any, steps: int) -> list[list[float]]:
    """The rates of the next steps, as the optimizer sees them."""
    rates = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, schedules.ReduceLROnPlateau) else []))
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
    return rates


def test_no_scheduler_of_torch_is_left_out() -> None:
    known = {
        name
        for name, member in vars(schedules).items()
        if inspect.isclass(member) and issubclass(member, schedules.LRScheduler) and not name.startswith("_")
    }
    assert known - {"LRScheduler"} <= {name.split()[0] for name in SCHEDULES}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("after", [0, 4, 11])
@pytest.mark.parametrize("times", [1, 2])
def test_the_whole_remaining_schedule_is_lowered(name: str, after: int, times: int) -> None:
    plain, lowered = make(name), make(name)
    assert advance(*plain, after) == advance(*lowered, after)
    for _ in range(times):
        lower_rates([lowered[0]], [lowered[1]], 0.5)
    now = [[float(g["lr"]) for g in o.param_groups] for o in (plain[0], lowered[0])]
    expected = [now[0], *advance(*plain, 25)]
    got = [now[1], *advance(*lowered, 25)]
    for want, have in zip(expected, got, strict=True):
        assert have == pytest.approx([0.5**times * rate for rate in want], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", ["LambdaLR", "CosineAnnealingLR with a floor", "OneCycleLR", "SequentialLR"])
def test_a_saved_and_loaded_schedule_stays_lowered(name: str) -> None:
    lowered, fresh = make(name), make(name)
    advance(*lowered, 8)
    lower_rates([lowered[0]], [lowered[1]], 0.5)
    for live, stored in zip(fresh, lowered, strict=True):
        live.load_state_dict(copy.deepcopy(stored.state_dict()))
    assert advance(*fresh, 20) == advance(*lowered, 20)


@pytest.mark.parametrize("name", ["LambdaLR", "CosineAnnealingLR", "LinearLR", "ExponentialLR"])
def test_a_rate_that_is_a_tensor_stays_the_same_tensor(name: str) -> None:
    plain, lowered = make(name, torch.tensor(0.1), AdamW), make(name, torch.tensor(0.1), AdamW)
    advance(*plain, 3), advance(*lowered, 3)
    tensors = [group["lr"] for group in lowered[0].param_groups]
    lower_rates([lowered[0]], [lowered[1]], 0.5)
    assert all(group["lr"] is tensor for group, tensor in zip(lowered[0].param_groups, tensors, strict=True))
    for want, have in zip(advance(*plain, 10), advance(*lowered, 10), strict=True):
        assert have == pytest.approx([0.5 * rate for rate in want], rel=1e-5)


def test_groups_that_share_one_rate_tensor_are_lowered_once() -> None:
    """torch hands the same tensor to every group that does not set its own rate."""
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    optimizer = AdamW([{"params": [p]} for p in parameters], lr=torch.tensor(0.1))
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[2]["lr"]
    lower_rates([optimizer], [], 0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.05] * 3)


def test_two_optimizers_with_a_schedule_each() -> None:
    one, two = make("LambdaLR", 0.1), make("OneCycleLR", 0.2)
    plain_one, plain_two = make("LambdaLR", 0.1), make("OneCycleLR", 0.2)
    scale_rates([one[0], two[0]], [two[1], one[1]], [[0.5, 0.25], [2.0, 1.0]])
    for want, have in zip(advance(*plain_one, 12), advance(*one, 12), strict=True):
        assert have == pytest.approx([0.5 * want[0], 0.25 * want[1]])
    for want, have in zip(advance(*plain_two, 12), advance(*two, 12), strict=True):
        assert have == pytest.approx([2.0 * want[0], want[1]])


def test_no_scheduler_at_all() -> None:
    optimizer = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.4)
    lower_rates([optimizer], [], 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_rates_are_told_with_their_peak() -> None:
    optimizer, scheduler = make("OneCycleLR")
    advance(optimizer, scheduler, 2)
    first, second = rates_of([optimizer.param_groups])
    assert (first.peak, second.peak) == (0.5, 0.2)
    assert first.lr == optimizer.param_groups[0]["lr"] < first.peak
    assert str(first).startswith("group 0: ") and "(peak 0.5)" in str(first)
    plain = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert [str(rate) for rate in rates_of([plain.param_groups])] == ["group 0: 0.1"]


def test_factors_take_the_peak_to_the_wanted_one() -> None:
    have, want = make("LambdaLR", 0.1)[0], make("LambdaLR", 0.4)[0]
    factors = factors_to(rates_of([have.param_groups]), rates_of([want.param_groups]), [have])
    assert factors == [[pytest.approx(4.0), pytest.approx(4.0)]]
    zero = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.0)
    wanted = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    (only,) = factors_to(rates_of([zero.param_groups]), rates_of([wanted.param_groups]), [zero])
    assert math.isfinite(only[0])
