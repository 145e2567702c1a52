"""Wrong use: a clear error or warning that says what to do; training and earlier checkpoints are left alone."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam

import preloaded
from stayfinite import Guard, Policy, RunStopped
from stayfinite.recover import CheckpointError
from stayfinite.watch.recorder import RunDirectoryError


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.randn(8, 3)).square().mean()


def make(model: nn.Module, run_dir: Path, **options: Any) -> Guard:
    return Guard(model, SGD(model.parameters(), 0.05), run_dir=run_dir, quiet=True, **options)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


WRONG_ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "clip 0": ({"clip_norm": 0.0}, ValueError, r"clip_norm=0\.0.*positive finite number"),
    "clip negative": ({"clip_norm": -1.0}, ValueError, r"clip_norm=-1\.0.*or None not to clip"),
    "clip nan": ({"clip_norm": float("nan")}, ValueError, r"clip_norm=nan"),
    "clip inf": ({"clip_norm": float("inf")}, ValueError, r"clip_norm=inf"),
    "policy": ({"policy": "retry"}, ValueError, r"unknown policy 'retry'.*'default', 'skip' or 'stop'"),
    "accumulate": ({"accumulate": 0}, ValueError, r"accumulate=0.*at least 1"),
    "interval": ({"scheduler_interval": "batch"}, ValueError, r"'batch'.*'step' or 'epoch'"),
    "check": ({"check_every": -1}, ValueError, r"0 for never"),
    "snapshot": ({"snapshot_every": -5}, ValueError, r"0 for never"),
    "scheduler": ({"scheduler": 0.1}, TypeError, r"torch schedulers; got a float"),
    "ema": ({"ema": {"w": torch.ones(1)}}, TypeError, r"AveragedModel; got a dict"),
    "sync": ({"sync": False}, ValueError, r"fused=True"),
    "listener": ({"listeners": [7]}, TypeError, r"TensorBoard writers; got a int"),
}


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_arguments_that_make_no_sense(tmp_path: Path, model: nn.Module, name: str) -> None:
    options, error, says = WRONG_ARGUMENTS[name]
    with pytest.raises(error, match=says):
        make(model, tmp_path / "run", **options)


def test_models_and_optimizers_that_are_none(tmp_path: Path, model: nn.Module) -> None:
    optimizer = SGD(model.parameters(), 0.1)
    wrong: list[tuple[Any, Any, str]] = [
        (model, None, r"got no optimizer"),
        (model, [], r"got no optimizer"),
        (model, "adam", r"torch optimizers; got a str"),
        (model, [optimizer, None], r"got a NoneType"),
        ([], optimizer, r"got no model"),
        ([model, 3], optimizer, r"'model1' is a int"),
        ({"net": torch.ones(1)}, optimizer, r"'net' is a Tensor"),
        (None, optimizer, r"model=\.\.\."),
    ]
    for models, optimizers, says in wrong:
        with pytest.raises((TypeError, ValueError), match=says):
            Guard(models, optimizers, run_dir=tmp_path / "run", quiet=True)


def test_an_optimizer_of_another_model(tmp_path: Path, model: nn.Module) -> None:
    other = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"none of the parameters in Adam belongs to the model.*deep-copied"):
        Guard(model, Adam(other.parameters()), run_dir=tmp_path, quiet=True)


def test_a_plateau_schedule_needs_a_metric(tmp_path: Path, model: nn.Module) -> None:
    optimizer = SGD(model.parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match=r"scheduler_interval='epoch'.*step\(metric\)"):
        Guard(model, optimizer, plateau, run_dir=tmp_path, quiet=True)


def wrong_losses(model: nn.Module) -> dict[str, tuple[Any, type[Exception], str]]:
    x = torch.randn(8, 3)
    return {
        "nothing returned": (lambda: None, TypeError, r"must return the loss.*NoneType"),
        "a number": (lambda: model(x).mean().item(), TypeError, r"returned float"),
        "detached": (lambda: model(x).mean().detach(), ValueError, r"detached or every input is frozen"),
        "no_grad": (lambda: _without_grad(model, x), ValueError, r"has no gradient"),
        "not one number": (lambda: model(x), ValueError, r"shape \(8, 1\).*\.mean\(\)"),
        "empty dict": (dict, ValueError, r"empty dict"),
        "of other parameters": (
            lambda: nn.Linear(3, 1)(x).mean(), ValueError, r"no parameter has a gradient.*optimizer of another model",
        ),
        "of the input": (lambda: x.clone().requires_grad_().mean(), ValueError, r"no parameter has a gradient"),
    }  # fmt: skip


def _without_grad(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).mean()


@pytest.mark.parametrize("name", wrong_losses(nn.Linear(3, 1)))
def test_a_step_function_gone_wrong(tmp_path: Path, model: nn.Module, name: str) -> None:
    """The error is the user's to see; the step has not happened; the next one works."""
    guard = make(model, tmp_path)
    assert guard.step(lambda: loss_of(model)).applied
    before, count = state_of(model), guard.step_count
    function, error, says = wrong_losses(model)[name]
    with pytest.raises(error, match=says):
        guard.step(function)
    assert unchanged(model, before) and guard.step_count == count
    assert guard.step(lambda: loss_of(model)).applied
    guard.close()


def test_the_users_own_error_passes_through_and_undoes_the_step(tmp_path: Path, model: nn.Module) -> None:
    guard = make(model, tmp_path)
    before = state_of(model)

    def broken() -> Tensor:
        model(torch.full((8, 3), float("nan")))
        raise KeyError("label")

    with pytest.raises(KeyError, match="label"):
        guard.step(broken)
    assert unchanged(model, before), "batch norm's statistics too"
    assert guard.step(lambda: loss_of(model)).applied


def test_an_optimizer_the_guard_does_not_know(tmp_path: Path, model: nn.Module) -> None:
    guard = make(model, tmp_path)
    with pytest.raises(ValueError, match="only optimizers that were given to the Guard"):
        guard.step(lambda: loss_of(model), optimizer=SGD(model.parameters(), 0.1))


def test_what_cannot_go_with_lbfgs(tmp_path: Path, model: nn.Module) -> None:
    guard = Guard(model, LBFGS(model.parameters()), run_dir=tmp_path, quiet=True, accumulate=2)
    with pytest.raises(ValueError, match=r"LBFGS evaluates the loss itself"):
        guard.step(lambda: loss_of(model))


def test_a_run_directory_under_a_file(tmp_path: Path, model: nn.Module) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=r"Choose a writable directory with Guard\(run_dir="):
        make(model, tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_closed_guard_still_guards(tmp_path: Path, model: nn.Module) -> None:
    guard = make(model, tmp_path)
    guard.step(lambda: loss_of(model))
    guard.close()
    guard.close()
    with pytest.warns(RuntimeWarning, match=r"can no longer write .*run\.jsonl.*start a new Guard") as caught:
        assert guard.step(lambda: loss_of(model)).applied
        assert not guard.step(lambda: loss_of(model) * float("nan")).applied
    assert len(caught) == 1 and guard.bad_state() == []


def test_a_run_directory_removed_in_mid_run(tmp_path: Path, model: nn.Module) -> None:
    guard = make(model, tmp_path / "run")
    guard.step(lambda: loss_of(model))
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="removed or moved"):
        result = guard.step(lambda: loss_of(model) * float("nan"))
    assert not result.applied
    assert (tmp_path / "run" / "incidents" / "0001" / "incident.json").exists()
    assert guard.step(lambda: loss_of(model)).applied


def test_a_checkpoint_in_a_place_that_cannot_be_written(tmp_path: Path, model: nn.Module) -> None:
    guard = make(model, tmp_path / "run")
    good = guard.save(tmp_path / "good.pt")
    before = good.read_bytes()
    with pytest.raises(CheckpointError, match="choose a writable directory"):
        guard.save(good / "inside.pt")
    with pytest.raises(CheckpointError, match="could not write"):
        guard.save("/proc/stayfinite/x.pt" if os.name == "posix" else tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        guard.restore(tmp_path / "missing.pt")
    assert good.read_bytes() == before
    assert guard.step(lambda: loss_of(model)).applied


FULL_DISK = """
import resource, sys, warnings, torch
from pathlib import Path
from torch import nn
from stayfinite import Guard
from stayfinite.recover import CheckpointError
torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = nn.Linear(20000, 1)
guard = Guard(model, torch.optim.SGD(model.parameters(), 1e-6), run_dir=folder / "run", quiet=True)
good = guard.save(folder / "good.pt")
before = good.read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for step in range(60):
        factor = float("nan") if step in (20, 40) else 1.0
        result = guard.step(lambda: model(torch.randn(1, 20000)).mean() * factor)
        guard._reporter._journal._recorder.flush()
        assert result.applied is (step not in (20, 40)), step
    try:
        guard.save(good)
    except CheckpointError as error:
        print(error)
    guard.close()
for warning in caught:
    print(warning.category.__name__, warning.message)
assert good.read_bytes() == before and guard.counters.applied == 58 and not guard.bad_state()
print("done")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the resource module")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """Files may not grow beyond 4 KB: the record, the incidents and the checkpoint all fail; the training does not."""
    child = preloaded.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
    )
    lines = child.stdout.splitlines()
    assert lines[-1:] == ["done"], child.stderr
    assert "Error" not in child.stderr and "Traceback" not in child.stderr, (
        child.stderr
    )  # no second one at exit
    assert "could not write the checkpoint" in lines[0] and "File too large" in lines[0]
    assert sum("can no longer write" in line for line in lines) == 1
    assert all(line.startswith("RuntimeWarning") for line in lines[1:-1])


def test_a_stopped_run_that_cannot_save_says_so(tmp_path: Path, model: nn.Module) -> None:
    guard = make(model, tmp_path / "run", policy=Policy.named("stop"))
    guard.step(lambda: loss_of(model))
    (tmp_path / "run" / "snapshots").write_text("a file where the folder should be", encoding="utf-8")
    with pytest.raises(RunStopped, match=r"first failure.*No clean checkpoint could be written") as stopped:
        guard.step(lambda: loss_of(model) * float("inf"))
    assert stopped.value.checkpoint is None and guard.bad_state() == []


def test_a_scheduler_the_guard_was_not_given_is_said_once_with_what_to_do(
    model: nn.Module, tmp_path: Path
) -> None:
    def warned(name: str, **options: Any) -> int:
        optimizer = SGD(model.parameters(), 0.05)
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 5) for _ in range(2)]
        options = {key: value(optimizer, schedulers) for key, value in options.items()}
        Guard(model, optimizer, run_dir=tmp_path / name, quiet=True, **options).close()
        return (tmp_path / name / "run.jsonl").read_text().count("Pass it as Guard(scheduler=...)")

    assert warned("unknown") == 1
    assert warned("given", scheduler=lambda optimizer, made: made[0]) == 0
    assert warned("chained", scheduler=lambda o, made: torch.optim.lr_scheduler.ChainedScheduler(made)) == 0
    assert warned("epochs", scheduler_interval=lambda optimizer, made: "epoch") == 0
    make(model, tmp_path / "none").close()
    assert "Pass it as" not in (tmp_path / "none" / "run.jsonl").read_text()
