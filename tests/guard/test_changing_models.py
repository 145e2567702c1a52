"""Layers that are unfrozen, added or replaced in the middle of a run are guarded like the others from then on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from stayfinite import Guard, Policy

NAN = float("nan")


def make(folder: Path, **options: Any) -> tuple[nn.Sequential, SGD, Guard]:
    """Only the last layer is trained at first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = SGD(model[1].parameters(), 0.05, momentum=0.9)
    return model, optimizer, Guard(model, optimizer, run_dir=folder, quiet=True, **options)


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.randn(8, 2)).square().mean()


def unfreeze(model: nn.Sequential, optimizer: SGD) -> Tensor:
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
    return model[0].weight


def replace_layer(model: nn.Sequential, optimizer: SGD) -> Tensor:
    """As many parameters as before, but others."""
    model[1] = nn.Linear(3, 1)
    optimizer.param_groups[0]["params"] = list(model[1].parameters())
    return model[1].weight


@pytest.mark.parametrize("change", [unfreeze, replace_layer])
@pytest.mark.parametrize("loop", [False, True])
def test_a_bad_gradient_of_a_new_parameter_is_refused(tmp_path: Path, change: Any, loop: bool) -> None:
    model, optimizer, guard = make(tmp_path, snapshot_every=3)
    for _ in range(3):
        assert guard.step(lambda: loss_of(model)).applied
    weight = change(model, optimizer)
    for _ in range(3):
        before = weight.detach().clone()
        assert guard.step(lambda: loss_of(model)).applied and not torch.equal(weight, before)
    before = weight.detach().clone()
    hook = weight.register_hook(lambda gradient: gradient * NAN)
    if loop:
        for x in guard.watch([torch.randn(8, 2)]):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
            optimizer.step()
    else:
        result = guard.step(lambda: loss_of(model))
        assert not result.applied and result.incident is not None
    hook.remove()
    assert torch.equal(weight, before) and guard.counters.skipped == 1 and guard.bad_state() == []
    name = next(name for name, parameter in model.named_parameters() if parameter is weight)
    guard.close()
    assert f"the gradient is not finite: {name}" in (tmp_path / "run.jsonl").read_text(encoding="utf-8")
    assert guard.bad_state() == []


def test_new_parameters_are_clipped_and_saved_too(tmp_path: Path) -> None:
    model, optimizer, guard = make(tmp_path, clip_norm=1e-3)
    guard.step(lambda: loss_of(model))
    unfreeze(model, optimizer)
    guard.step(lambda: loss_of(model) * 1e3)
    norm = torch.linalg.vector_norm(
        torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
    )
    assert float(norm) <= 1.001e-3
    guard.restore(guard.save(tmp_path / "x.pt"))


def test_going_back_to_a_copy_from_before_the_change(tmp_path: Path) -> None:
    policy = Policy(lower_lr_after=None, rollback_after=2)
    model, optimizer, guard = make(tmp_path, snapshot_every=1000, policy=policy)
    for _ in range(4):
        guard.step(lambda: loss_of(model))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    guard.step(lambda: loss_of(model))  # before step 4 a copy is taken, as before the other early steps
    unfreeze(model, optimizer)
    guard.step(lambda: loss_of(model))
    actions = [guard.step(lambda: loss_of(model) * NAN).action for _ in range(2)]
    assert actions == ["skip", "rollback"]
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert guard.step(lambda: loss_of(model)).applied
