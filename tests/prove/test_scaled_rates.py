"""A rate that is tried in place of an absurd one: only of the groups that have it."""

from __future__ import annotations

import torch
from torch import nn

from stayfinite.findings.update_size import AbsurdUpdate
from stayfinite.remedies.measured_rate import MeasuredRate


def moved(optimizer: torch.optim.Optimizer) -> list[float]:
    """How far each group goes in one update of a gradient of 1."""
    parameters = [group["params"][0] for group in optimizer.param_groups]
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return [float((p.detach() - b).abs().max()) for p, b in zip(parameters, before, strict=True)]


def test_a_group_whose_rate_was_right_keeps_it() -> None:
    """The actor's rate was multiplied by 1e-22 as well, and the report said "in place of 1e18"."""
    actor, critic = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [actor], "lr": 3e-4}, {"params": [critic], "lr": 1e18}])
    with MeasuredRate(AbsurdUpdate(1, 1e18, 7e18)).applied():
        of_actor, of_critic = moved(optimizer)
    assert abs(of_actor - 3e-4) < 1e-9 and abs(of_critic - 1e-4) < 1e-8
    assert [group["lr"] for group in optimizer.param_groups] == [3e-4, 1e18]


def test_a_schedule_that_begins_low_is_scaled_by_its_peak() -> None:
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=10.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 1000)
    with MeasuredRate(AbsurdUpdate(1, 10.0, 100.0)).applied():
        assert moved(optimizer) == [0.0]
        schedule.step()
        (first,) = moved(optimizer)
    assert abs(first - 0.01 * 1e-5) < 1e-9
