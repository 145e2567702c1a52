"""Checkpoints between batches: whenever one is taken, the run that resumes from it ends in the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset
from trials.bits import differing

from guard.small_training import NAN, Training, batches
from stayfinite import Guard, Policy, RunStopped
from stayfinite.recover import CheckpointError

EPOCHS, LENGTH, BAD = 2, 7, 4
SAMPLES = torch.randn(4 * LENGTH, 4, generator=torch.Generator().manual_seed(9))


class Run:
    """Two epochs of a shuffled loader and dropout: a resume that is one batch or one random number off shows."""

    def __init__(self, folder: Path, bad: int | None = None, accumulate: int = 1, **options: Any) -> None:
        self.training = Training(lambda p: Adam(p, 0.02), dropout=0.3)
        self.guard = self.training.guard(folder, **options)
        self.loader = DataLoader(TensorDataset(SAMPLES), 4, shuffle=True)
        self.bad, self.accumulate = bad, accumulate

    def is_bad(self) -> bool:
        return self.bad is not None and self.guard.step_count == self.bad and self.guard.counters.skipped == 0

    def go(self, at: Callable[[Run, int, str], None] | None = None) -> dict[str, Any]:
        """Train to the end; `at` is called at the start and at the end of each body. Gives all bits at the end."""
        say = at or (lambda *_: None)
        training = self.training
        while self.guard.epoch < EPOCHS:
            for (x,) in self.guard.watch(self.loader):
                number = self.guard.step_count
                say(self, number, "start")
                spoil = NAN if self.is_bad() else 1.0
                training.optimizer.zero_grad()
                (training.loss(x) * spoil).backward()
                training.optimizer.step()
                training.advance()
                say(self, number, "end")
        return {**training.bits(), "steps": self.guard.step_count, "counters": self.guard.counters.to_dict()}


def straight(folder: Path, **options: Any) -> dict[str, Any]:
    return Run(folder / "straight", **options).go()


def resumed(folder: Path, path: Path, **options: Any) -> dict[str, Any]:
    run = Run(folder / "resumed", **options)
    run.guard.restore(path)
    return run.go()


KINDS: list[dict[str, Any]] = [
    {"bad": None, "locate": False},
    {"bad": BAD, "locate": False},
    {"bad": BAD, "locate": True},
]
SAVED_AT = (0, BAD, BAD + 1, LENGTH)


@dataclass(frozen=True)
class Trained:
    """A run of one kind without a save, and two that have saved: each is trained once for all tests."""

    options: dict[str, Any]
    folder: Path

    @cached_property
    def expected(self) -> dict[str, Any]:
        return straight(self.folder, **self.options)

    @cached_property
    def periodic(self) -> Path:
        """The folder of a run that has saved every third step."""
        saving = Run(self.folder / "periodic", **self.options, save_every=3, keep=0)
        assert differing(saving.go(), self.expected) == [], "saving changes the run"
        return self.folder / "periodic" / "snapshots"

    @cached_property
    def in_the_body(self) -> Path:
        """The folder of what was saved at the start and at the end of bodies."""

        def save(run: Run, number: int, where: str) -> None:
            path = self.folder / f"{where}-{number}.pt"
            if number in SAVED_AT and not path.exists():
                run.guard.save(path)

        assert differing(Run(self.folder / "saving", **self.options).go(save), self.expected) == [], (
            "saving changes the run"
        )
        return self.folder


@pytest.fixture(scope="module", params=KINDS, ids=str)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(request.param, tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize("step", [3, 6, 9])
def test_a_periodic_save(tmp_path: Path, trained: Trained, step: int) -> None:
    path = trained.periodic / f"step-{step:08d}.pt"
    assert differing(resumed(tmp_path, path, **trained.options), trained.expected) == []


@pytest.mark.parametrize("when", ["start", "end"])
@pytest.mark.parametrize("step", SAVED_AT)
def test_a_save_in_the_body(tmp_path: Path, trained: Trained, when: str, step: int) -> None:
    """At the start of a body its batch is still to come; at the end it is done, also if it was refused."""
    path = trained.in_the_body / f"{when}-{step}.pt"
    assert differing(resumed(tmp_path, path, **trained.options), trained.expected) == []


def test_a_save_in_the_middle_of_a_body_is_refused(tmp_path: Path) -> None:
    training = Training()
    guard = training.guard(tmp_path)
    for x in guard.watch(batches(2)):
        training.optimizer.zero_grad()
        loss = training.loss(x)
        loss.backward()
        with pytest.raises(CheckpointError):
            guard.save(tmp_path / "a.pt")
        training.optimizer.step()
        training.advance()
    assert guard.counters.applied == 2 and not (tmp_path / "a.pt").exists()


def test_a_save_between_two_epochs_and_after_the_last(tmp_path: Path) -> None:
    expected = straight(tmp_path)
    run = Run(tmp_path / "run")
    for (x,) in run.guard.watch(run.loader):
        run.training.body(x)
    between = run.guard.save(tmp_path / "a.pt")
    assert differing(run.go(), expected) == []
    last = run.guard.save(tmp_path / "b.pt")
    assert differing(resumed(tmp_path / "between", between), expected) == []
    assert differing(resumed(tmp_path / "last", last), expected) == []


# -- restoring


def test_restoring_resets_the_ladder(tmp_path: Path) -> None:
    """Failures before a restore are those of another run: they do not count as in a row with those after it."""
    training = Training()
    policy = Policy(lower_lr_after=None, rollback_after=None, stop_after=3)
    guard = training.guard(tmp_path, policy=policy)
    good, bad = batches(1)[0], torch.full((6, 4), NAN)
    guard.step(lambda: training.loss(good))
    path = guard.save(tmp_path / "a.pt")
    for _ in range(2):
        for _ in range(2):
            assert guard.step(lambda: training.loss(bad)).action == "skip"
        guard.restore(path)
    assert guard.step(lambda: training.loss(good)).applied
    with pytest.raises(RunStopped):
        for _ in range(3):
            guard.step(lambda: training.loss(bad))


def test_restoring_resets_the_share_of_applied_steps(tmp_path: Path) -> None:
    training = Training()
    policy = Policy(lower_lr_after=None, rollback_after=None, min_applied_window=10)
    guard = training.guard(tmp_path, policy=policy)
    good, bad = batches(1)[0], torch.full((6, 4), NAN)
    path = guard.save(tmp_path / "a.pt")
    for number in range(9):
        guard.step(lambda n=number: training.loss(good if n % 3 == 0 else bad))
    guard.restore(path)
    for _ in range(2):
        guard.step(lambda: training.loss(bad))  # the tenth step of the window, if it were not another run


class Scaled(Training):
    """With a scaler too: everything a checkpoint can hold."""

    def __init__(self, width: int = 6) -> None:
        super().__init__(lambda p: Adam(p, 0.01))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        self.model.register_buffer("extra", torch.ones(width), persistent=False)
        self.model.register_buffer("kept", torch.ones(width))
        self.average = AveragedModel(self.model, use_buffers=True)

    def guarded(self, folder: Path) -> Guard:
        guard = self.guard(folder, scaler=self.scaler)
        for x in batches(3):
            guard.step(lambda x=x: self.loss(x))
        return guard


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(payload: dict[str, Any]) -> None:
        at: Any = payload
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def put(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(payload: dict[str, Any]) -> None:
        at: Any = payload
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a moment of another shape": put(torch.zeros(3, 3), "optimizers", 0, "state", 0, "exp_avg"),
    "a moment that is no tensor": put("no tensor", "optimizers", 0, "state", 0, "exp_avg"),
    "a moment is missing": drop("optimizers", 0, "state", 0, "exp_avg_sq"),
    "moments of another optimizer": put({"momentum_buffer": torch.zeros(6, 4)}, "optimizers", 0, "state", 0),
    "groups of another optimizer": drop("optimizers", 0, "param_groups", 0, "betas"),
    "a group without its parameters": drop("optimizers", 0, "param_groups", 0, "params"),
    "no optimizers": drop("optimizers"),
    "no optimizer state": drop("optimizers", 0, "state"),
    "a weight of another shape": put(torch.zeros(2, 2), "model", "0.weight"),
    "a weight that is no tensor": put(3.0, "model", "0.weight"),
    "a weight is missing": drop("model", "4.weight"),
    "a weight too many": put(torch.zeros(2), "model", "9.weight"),
    "a buffer of another shape": put(torch.zeros(3), "model", "1.running_mean"),
    "no model": drop("model"),
    "the model is a list": put([1, 2], "model"),
    "an average of another shape": put(torch.zeros(2, 2), "ema", 0, "module.4.weight"),
    "an average's buffer of another shape": put(torch.zeros(2), "ema", 0, "module.1.running_var"),
    "an average's weight is missing": drop("ema", 0, "module.4.weight"),
    "no averages": drop("ema"),
    "a schedule of another kind": put({"T_max": 3}, "schedulers", 0),
    "a schedule that is none": put(None, "schedulers", 0),
    "no schedulers": drop("schedulers"),
    "no scale": drop("scaler", "scale"),
    "a scale that is no number": put("big", "scaler", "scale"),
    "no random state": drop("rng"),
    "half a random state": drop("rng", "torch_cpu"),
    "a random state of another length": put(torch.zeros(7, dtype=torch.uint8), "rng", "torch_cpu"),
    "no buffers": drop("buffers"),
    "no position in the data": drop("data"),
    "half a position": drop("data", "batch"),
    "no counters": drop("guard"),
    "half the counters": drop("guard", "counters"),
    "no step": drop("step"),
    "a step that is none": put("third", "step"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    return Scaled().guarded(folder / "first").save(folder / "a.pt")


@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_that_does_not_fit_fails_as_a_whole(tmp_path: Path, saved: Path, name: str) -> None:
    """CheckpointError with a sentence, before anything is loaded: every bit of the live run is as it was."""
    path = tmp_path / "a.pt"
    payload = torch.load(saved, weights_only=True)
    CHANGES[name](payload)
    torch.save(payload, path)

    live = Scaled()
    guard = live.guarded(tmp_path / "second")
    for x in batches(2, seed=5):
        guard.step(lambda x=x: live.loss(x))

    def now() -> dict[str, Any]:
        own = {"step": guard.step_count, "epoch": guard.epoch, **guard.counters.to_dict()}
        return {**live.bits(), **own, "scaler": live.scaler.state_dict()}

    before = now()
    with pytest.raises(CheckpointError):
        guard.restore(path)
    assert differing(before, now()) == []
    assert guard.step(lambda: live.loss(batches(1)[0])).applied, "the run goes on"


@pytest.mark.parametrize("what", ["wider", "deeper"])
def test_another_model_is_refused_as_a_whole(tmp_path: Path, saved: Path, what: str) -> None:
    torch.manual_seed(0)
    layers: Iterable[nn.Module] = (
        [nn.Linear(4, 9), nn.Linear(9, 1)] if what == "wider" else [nn.Linear(4, 4) for _ in range(5)]
    )
    model = nn.Sequential(*layers)
    optimizer = Adam(model.parameters())
    guard = Guard(model, optimizer, run_dir=tmp_path / "second", quiet=True)
    guard.step(lambda: model(batches(1)[0]).square().mean())
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(CheckpointError):
        guard.restore(saved)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
