"""What a checkpoint holds, how it is put back, and at which learning rate the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel

from stayfinite import Guard
from stayfinite.recover import CheckpointError, archive, checkpoint
from stayfinite.recover.rng import RngState
from stayfinite.recover.state import TrainingState

SCHEDULES: dict[str, Callable[[Optimizer, float], Any]] = {
    "none": lambda o, lr: None,
    "LambdaLR": lambda o, lr: schedules.LambdaLR(o, lambda step: 0.9**step),
    "NumPy": lambda o, lr: schedules.LambdaLR(o, lambda step: np.cos(step / 30)),
    "OneCycleLR": lambda o, lr: schedules.OneCycleLR(o, lr, total_steps=40),
    "CosineAnnealingLR": lambda o, lr: schedules.CosineAnnealingLR(o, 30, eta_min=lr / 100),
    "MultiStepLR": lambda o, lr: schedules.MultiStepLR(o, [3, 8, 12]),
}


class Run:
    """A tiny training with a rate of its own."""

    def __init__(self, folder: Path, schedule: str, lr: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = SGD(self.model.parameters(), lr, momentum=0.9)
        self.scheduler = SCHEDULES[schedule](self.optimizer, lr)
        self.guard = Guard(self.model, self.optimizer, self.scheduler, run_dir=folder, quiet=True)

    def rates(self, steps: int) -> list[float]:
        """The rate each of the next steps is made with."""
        used = []
        for step in range(steps):
            used.append(float(self.optimizer.param_groups[0]["lr"]))
            x = torch.full((2, 3), 0.01 * (step + 1))
            self.guard.step(lambda x=x: self.model(x).square().mean())
        return used


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("resume_lr", ["checkpoint", "config"])
def test_the_rates_of_all_following_steps(tmp_path: Path, schedule: str, resume_lr: str) -> None:
    old = Run(tmp_path / "old", schedule, lr=0.1)
    old.rates(6)
    old.guard.save(tmp_path / "x.pt")
    rest = old.rates(10)

    new = Run(tmp_path / "new", schedule, lr=0.04)
    new.guard.restore(tmp_path / "x.pt", resume_lr=resume_lr)
    factor = 1.0 if resume_lr == "checkpoint" else 0.4
    assert new.rates(10) == pytest.approx([factor * rate for rate in rest], rel=1e-9)

    said = (new.guard.run_dir / "run.jsonl").read_text(encoding="utf-8")
    assert "the learning rates differ" in said and resume_lr in said
    assert "0.1" in said and "0.04" in said, "both rates are shown"


def test_equal_rates_are_told_once_and_plainly(tmp_path: Path) -> None:
    old = Run(tmp_path / "old", "LambdaLR", lr=0.1)
    old.rates(6)
    old.guard.save(tmp_path / "x.pt")
    new = Run(tmp_path / "new", "LambdaLR", lr=0.1)
    new.guard.restore(tmp_path / "x.pt")
    assert "differ" not in (tmp_path / "new" / "run.jsonl").read_text(encoding="utf-8")


def test_an_unknown_choice_of_rate(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "none", 0.1)
    run.guard.save(tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"resume_lr='newest'.*'checkpoint' or 'config'"):
        run.guard.restore(tmp_path / "x.pt", resume_lr="newest")


class Net(nn.Module):
    """Persistent and other buffers, half parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2).bfloat16()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return self.norm(self.first(x.bfloat16()).float()).sum()


def test_everything_comes_back_with_its_dtype(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = Adam(model.parameters(), 0.1)
    state = TrainingState(model, optimizer, scaler=scaler, ema=AveragedModel(model))
    scaler.scale(model(torch.randn(4, 2))).backward()
    scaler.step(optimizer)
    scaler.update(new_scale=32.0)
    moment = torch.rand(2, 2)
    optimizer.state[model.first.weight]["exp_avg"] = moment.clone()  # float32 for a half parameter
    state.averages[0].update_parameters(model)  # type: ignore[operator]
    checkpoint.write(tmp_path / "x.pt", archive.pack(state, 7, {"batch": 0}, {}, RngState.capture()))

    torch.manual_seed(9)
    other = Net()
    fresh = TrainingState(
        other, Adam(other.parameters(), 0.1), scaler=torch.amp.GradScaler("cpu"), ema=AveragedModel(other)
    )
    archive.unpack(checkpoint.read(tmp_path / "x.pt"), fresh, "checkpoint")
    for (kind, name, old), (_, also, new) in zip(state.tensors(), fresh.tensors(), strict=True):
        assert name == also and old.dtype == new.dtype and torch.equal(old, new), (kind, name)
    restored = fresh.optimizers[0].state[other.first.weight]["exp_avg"]
    assert restored.dtype is torch.float32 and torch.equal(restored, moment)
    assert float(other.seen) == 1.0
    assert fresh.scaler.get_scale() == 32.0


def test_random_numbers_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "none", 0.1)
    run.guard.save(tmp_path / "x.pt")
    drawn = torch.rand(3), np.random.rand(3)
    torch.manual_seed(77), np.random.seed(3)
    run.guard.restore(tmp_path / "x.pt")
    assert torch.equal(torch.rand(3), drawn[0]) and (np.random.rand(3) == drawn[1]).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scheduler": True}, "0 schedulers, this guard has 1"),
        ({"ema": True}, "0 ema, this guard has 1"),
        ({"scaler": True}, "loss scaler"),
        ({"two": True}, "1 optimizers, this guard has 2"),
        ({"size": 5}, "does not fit the present model"),
        ({"groups": True}, "does not fit the present model or optimizer"),
    ],
)
def test_a_run_of_another_shape_is_refused_and_left_alone(tmp_path: Path, change: Any, says: str) -> None:
    run = Run(tmp_path / "run", "none", 0.1)
    run.rates(3)
    run.guard.save(tmp_path / "x.pt")
    model = nn.Linear(change.get("size", 3), 1)
    optimizer: Any = SGD(model.parameters(), 0.1, momentum=0.9)
    if "groups" in change:
        optimizer = SGD([{"params": [model.weight]}, {"params": [model.bias]}], 0.1)
    optimizers = [SGD([model.weight], 0.1), SGD([model.bias], 0.1)] if "two" in change else optimizer
    other = Guard(
        model,
        optimizers,
        schedules.StepLR(optimizer, 1) if "scheduler" in change else None,
        torch.amp.GradScaler("cpu") if "scaler" in change else None,
        AveragedModel(model) if "ema" in change else None,
        run_dir=tmp_path / "other",
        quiet=True,
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=says):
        other.restore(tmp_path / "x.pt")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert other.step_count == 0


def test_a_checkpoint_gone_bad_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "none", 0.1)
    run.rates(2)
    run.guard.save(tmp_path / "x.pt")
    stored = checkpoint.read(tmp_path / "x.pt")
    stored["optimizers"][0]["state"][0]["momentum_buffer"][0, 1] = float("nan")
    checkpoint.write(tmp_path / "bad.pt", stored)
    weight = run.model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"momentum_buffer holds 1 NaN and 0 Inf.*Restore an older one"):
        run.guard.restore(tmp_path / "bad.pt")
    assert torch.equal(run.model.weight, weight)


def test_state_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    """It is put back from the last good copy first; without one, nothing is written."""
    run = Run(tmp_path / "run", "none", 0.1)
    run.rates(2)
    path = run.guard.save(tmp_path / "x.pt")
    before = path.read_bytes()
    with torch.no_grad():
        run.model.weight[0, 1] = float("inf")
    assert run.guard.save(tmp_path / "y.pt").is_file() and run.guard.bad_state() == []
    with torch.no_grad():
        run.model.weight[0, 1] = float("inf")
    run.guard.recovery.last_good.forget()
    with pytest.raises(CheckpointError, match=r"model.weight holds 0 NaN and 1 Inf.*untouched"):
        run.guard.save(path)
    assert path.read_bytes() == before
