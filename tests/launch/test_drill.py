"""The fire drill: real faults in real scripts, each in its own sandboxed process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import preloaded
from stayfinite.sandbox import support

needs_overlay = pytest.mark.skipif(
    support.sandbox().kind != "namespaces", reason="needs a sandbox in which the script may write"
)

_HEAD = """
import copy, os, torch
from torch import nn
import torch.nn.functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
"""
_PLAIN_ATOMIC = (
    _HEAD
    + """
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
average = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
for step in range(30):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        for mean, value in zip(average.parameters(), model.parameters()):
            mean.lerp_(value, 0.1)
    if step % 5 == 4:
        torch.save({"model": model.state_dict(), "step": step}, "last.pt.tmp")
        os.replace("last.pt.tmp", "last.pt")
"""
)
_LOADER_TORN = (
    _HEAD
    + """
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for epoch in range(5):
    for x, y in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""
)
_AHEAD_AND_BUFFERED = (
    _HEAD
    + """
import io, tempfile
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
data = TensorDataset(torch.randn(240, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch

for step, (x,) in enumerate(ahead(DataLoader(data, 8))):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        memory = io.BytesIO()
        torch.save({"model": model.state_dict(), "step": step}, memory)
        handle, name = tempfile.mkstemp(dir=".")
        os.close(handle)
        with open("notes", "w") as notes:
            notes.write("saving")
        with open(name, "wb") as file:
            file.write(memory.getvalue())
        os.replace(name, "last.pt")
"""
)
_SCALER = (
    _HEAD
    + """
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(30):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
)
_STOPS_BY_ITSELF = (
    _HEAD
    + """
import io
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(30):
    loss = (model(torch.randn(16, 4)) - 1).square().mean()
    if not torch.isfinite(loss):
        raise ValueError("stopping")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    memory = io.BytesIO()
    torch.save(model.state_dict(), memory)
    with open(f"step_{step}.pt", "wb") as file:
        file.write(memory.getvalue())
"""
)


def _drill(folder: Path, source: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(source)
    return preloaded.run(
        [sys.executable, "-m", "stayfinite", "run", "--drill", *options, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def _faults(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.stdout, done.stderr
    return {fault["fault"]: fault for fault in json.loads(done.stdout)["drill"]["faults"]}


@needs_overlay
def test_a_plain_loop_survives_and_its_torn_save_is_shown(tmp_path: Path) -> None:
    in_place = _PLAIN_ATOMIC.replace('"last.pt.tmp")\n', '"last.pt")\n').replace(
        '        os.replace("last.pt.tmp", "last.pt")\n', ""
    )
    assert "tmp" not in in_place
    done = _drill(tmp_path, in_place, "--format", "json")
    faults = _faults(done)
    assert done.returncode == 1
    for name in ("nan batch", "inf gradient", "bad update"):
        answers = (faults[name]["caught_by"], faults[name]["undone"], faults[name]["survived"])
        assert answers == ("stayfinite", "yes", "yes")
        assert faults[name]["compared"] == dict.fromkeys(
            ("parameters", "buffers", "optimizer state", "averages"), True
        )
    assert faults["kill while saving"]["survived"] == "no"
    assert "last.pt is damaged" in faults["kill while saving"]["details"][0]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]  # nothing of the drill stays


@pytest.mark.long
@needs_overlay
def test_a_plain_loop_with_an_average_and_an_atomic_save_survives_everything(tmp_path: Path) -> None:
    done = _drill(tmp_path, _PLAIN_ATOMIC, "--format", "json")
    faults = _faults(done)
    assert done.returncode == 0, done.stdout
    for name in ("nan batch", "inf gradient", "bad update"):
        assert (faults[name]["caught_by"], faults[name]["undone"], faults[name]["survived"]) == (
            "stayfinite",
            "yes",
            "yes",
        )
        assert faults[name]["compared"] == dict.fromkeys(
            ("parameters", "buffers", "optimizer state", "averages"), True
        )
    assert faults["kill while saving"]["survived"] == "yes"
    assert "last.pt is whole" in faults["kill while saving"]["details"][0]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]  # nothing of the drill stays


@pytest.mark.long
@needs_overlay
def test_a_checkpoint_that_is_written_in_place_is_shown_damaged(tmp_path: Path) -> None:
    done = _drill(tmp_path, _LOADER_TORN, "5", "--format", "json")
    faults = _faults(done)
    assert done.returncode == 1
    assert "DataLoader" in faults["nan batch"]["injected"]
    assert all(faults[name]["survived"] == "yes" for name in ("nan batch", "inf gradient", "bad update"))
    assert faults["kill while saving"]["survived"] == "no"
    assert "model.pt is damaged" in faults["kill while saving"]["details"][0]
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.long
@needs_overlay
def test_what_a_scaler_catches_is_said_to_be_the_scalers(tmp_path: Path) -> None:
    done = _drill(tmp_path, _SCALER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nan batch           yes, by GradScaler   yes      yes" in done.stdout
    assert "bad update          yes, by stayfinite   yes      yes" in done.stdout
    assert "no checkpoint was being written" in done.stdout


@pytest.mark.long
@needs_overlay
def test_a_script_that_ends_at_a_bad_loss_has_not_survived_it(tmp_path: Path) -> None:
    faults = _faults(_drill(tmp_path, _STOPS_BY_ITSELF, "--format", "json"))
    assert faults["nan batch"]["caught_by"] == "the script, which ends"
    assert faults["nan batch"]["survived"] == "no"
    assert "ValueError: stopping" in faults["nan batch"]["details"][0]
    assert faults["inf gradient"]["survived"] == "yes"  # in a run of its own
    torn = faults["kill while saving"]
    assert "step_1.pt is damaged" in torn["details"][0]  # written by python from memory
    assert "the newest whole one is step_0.pt" in torn["details"][1]


def test_nothing_to_drill_is_one_sentence(tmp_path: Path) -> None:
    none = _drill(tmp_path, _HEAD + "nn.Linear(2, 1)(torch.ones(1, 2))\n")
    assert none.returncode == 2
    assert "makes no optimizer step" in none.stderr


@pytest.mark.long
def test_too_few_updates_to_drill_is_one_sentence(tmp_path: Path) -> None:
    short = _drill(tmp_path, _SCALER.replace("range(30)", "range(2)"))
    assert short.returncode == 2
    assert "makes only 2 updates, and the drill begins after 3" in short.stderr


def test_without_a_sandbox_it_refuses(tmp_path: Path) -> None:
    done = _drill(tmp_path, _SCALER, STAYFINITE_SANDBOX="none")
    assert done.returncode == 2
    assert "needs a sandbox" in done.stderr


@pytest.mark.long
@needs_overlay
def test_a_batch_fetched_ahead_and_a_save_through_memory(tmp_path: Path) -> None:
    """As accelerate's loaders and Lightning's checkpoints do it."""
    done = _drill(tmp_path, _AHEAD_AND_BUFFERED, "--format", "json")
    faults = _faults(done)
    assert "DataLoader" in faults["nan batch"]["injected"]
    assert (faults["nan batch"]["caught_by"], faults["nan batch"]["undone"]) == ("stayfinite", "yes")
    assert faults["kill while saving"]["survived"] == "yes"
    assert "last.pt is whole" in faults["kill while saving"]["details"][0]
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@pytest.mark.skipif(not support.allows("landlock"), reason="needs Landlock")
def test_where_the_script_may_not_write_its_end_says_nothing(tmp_path: Path) -> None:
    saving = _PLAIN_ATOMIC.replace("step % 5 == 4", "step == 8")  # after the first fault, in the second
    done = _drill(tmp_path, saving, "--format", "json", STAYFINITE_SANDBOX="landlock")
    faults = _faults(done)
    assert faults["nan batch"]["survived"] == "yes"
    ended = faults["inf gradient"]
    assert ended["survived"] == "unknown" and "may not write" in " ".join(
        [ended["injected"], *ended["details"]]
    )
    assert faults["kill while saving"]["survived"] == "unknown"
