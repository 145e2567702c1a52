"""The periodic look at all state: it happens with the default intervals, says what it finds, and repairs it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from trials.bits import bits, finite

from guard.small_training import NAN, batches
from stayfinite import Guard

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DATA = batches(230)


class Run:
    """State that training never reads: it can be poisoned for ever without any loss that shows it."""

    def __init__(self, folder: Path, scheduler: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.unused = nn.Linear(2, 2)
        self.model.add_module("unused", nn.ModuleList([self.unused]))
        self.optimizer = SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.average = AveragedModel(self.model, use_buffers=True)
        for p in self.unused.parameters():
            self.optimizer.state[p]["momentum_buffer"] = torch.ones_like(p)
        self.folder = folder
        self.guard = Guard(
            self.model, self.optimizer, scheduler, ema=self.average, run_dir=folder, quiet=True, **options
        )

    def poison(self, where: str) -> None:
        tensor: Callable[[], torch.Tensor] = {
            "average": lambda: self.average.module[0].weight,
            "running statistics": lambda: self.model[1].running_var,
            "moment": lambda: self.optimizer.state[self.unused.weight]["momentum_buffer"],
        }[where]
        with torch.no_grad():
            tensor().view(-1)[1] = NAN

    def go(self, first: int, last: int, way: str = "step") -> None:
        data = DATA[first:last]
        for x in data if way == "step" else self.guard.watch(data):
            if way == "step":
                self.guard.step(lambda x=x: self.loss(x))
            else:
                self.optimizer.zero_grad()
                self.loss(x).backward()
                self.optimizer.step()
                self.average.update_parameters(self.model)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model[2](self.model[1](self.model[0](x))).square().mean()

    def record(self) -> str:
        self.guard.close()
        lines = [json.loads(line) for line in (self.folder / "run.jsonl").read_text().splitlines()]
        return "\n".join(str(line.get("what", "")) for line in lines)


NAMES = {"average": "ema", "running statistics": "1.running_var", "moment": "momentum_buffer"}


@pytest.mark.parametrize("way", ["step", "watch"])
@pytest.mark.parametrize("where", NAMES)
def test_the_look_happens_with_the_default_intervals(tmp_path: Path, where: str, way: str) -> None:
    """Both intervals are 100: within 100 steps the damage is found, on record, and repaired from the last good copy."""
    run = Run(tmp_path)
    run.go(0, 110, way)
    assert run.guard.counters.applied == 110
    run.poison(where)
    run.go(110, 215, way)
    assert run.guard.bad_state() == []
    assert finite(bits(model=run.model, optimizer=run.optimizer, average=run.average))
    applied = run.guard.counters.applied
    assert NAMES[where] in run.record()
    assert applied >= 210, "the run went on"
    run.go(215, 230, way)
    assert run.guard.counters.applied >= 224


@pytest.mark.parametrize("where", NAMES)
def test_a_look_of_its_own_interval(tmp_path: Path, where: str) -> None:
    run = Run(tmp_path, check_every=5, snapshot_every=10)
    run.go(0, 13)
    run.poison(where)
    run.go(13, 22)
    assert run.guard.bad_state() == []
    assert NAMES[where] in run.record()


@pytest.mark.parametrize("where", NAMES)
def test_a_copy_that_would_hold_nan_is_not_taken_and_that_is_said(tmp_path: Path, where: str) -> None:
    """No look but the one before a copy: it is said that there is none, and of what."""
    run = Run(tmp_path, check_every=0, snapshot_every=10)
    run.go(0, 13)
    run.poison(where)
    run.go(13, 25)
    record = run.record()
    assert NAMES[where] in record
    assert run.guard.bad_state() == []


class Holding:
    """A user's own scheduler whose state cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"lock": self.lock, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_a_copy_that_cannot_be_taken_is_said_once_and_does_not_end_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, Holding(), snapshot_every=5)
    run.go(0, 20)
    assert run.guard.counters.applied == 20
    record = run.record()
    assert "copied" in record and record.count("copied") < 4, "said, but not at every step"


def test_what_a_close_finds_is_repaired_and_said(tmp_path: Path) -> None:
    """The end of a run is not the next multiple of a hundred."""
    run = Run(tmp_path)
    run.go(0, 10)
    run.poison("average")
    record = run.record()
    assert run.guard.bad_state() == []
    assert "ema" in record


def test_a_healthy_run_says_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go(0, 230)
    assert run.guard.counters.applied == 230
    assert run.record().strip() == ""
