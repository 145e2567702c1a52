"""`stayfinite run` proves a fix, `stayfinite replay` reproduces the failure, applies the patch and writes the test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded
from stayfinite.sandbox import support

pytestmark = pytest.mark.skipif(support.sandbox().kind == "none", reason="no sandbox")

SCRIPT = """import torch
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.tensor([[1.0], [0.2], [0.0]], requires_grad=True)
seen = open("seen.txt", "a").write("once\\n")
loss = -torch.log(x).mean()
loss.backward()
print("loss", loss.item())
"""


def stayfinite(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "STAYFINITE_PROVE"}
    return preloaded.run(
        [sys.executable, "-m", "stayfinite", *arguments],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )


def pytest_of(test: Path) -> int:
    return preloaded.run(
        [sys.executable, "-m", "pytest", "-q", str(test)],
    ).returncode


def proved(tmp_path: Path) -> Path:
    """Run the script; the folder of its incident, which has a proof."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = stayfinite("run", "--run-dir", "run", "train.py", folder=tmp_path)
    assert done.returncode == 0 and done.stdout == "loss inf\n"
    assert "Proved   log-eps" in done.stderr or "Proved   log-floor" in done.stderr
    assert (tmp_path / "seen.txt").read_text() == "once\n"  # no trial has written anything
    folder = tmp_path / "run" / "incidents" / "0001"
    incident = json.loads((folder / "incident.json").read_text())
    assert incident["findings"][0]["proof"]["finite"] is True
    assert incident["patch"] and incident["test"] and incident["standalone"]
    assert all(one["verdict"] != "proved" for one in incident["tried"] if one["control"])
    return folder


def test_a_fix_is_proved_and_nothing_of_the_trials_is_left(tmp_path: Path) -> None:
    proved(tmp_path)


@pytest.mark.long
def test_replay_test_and_apply(tmp_path: Path) -> None:
    folder, script = proved(tmp_path), tmp_path / "train.py"
    again = stayfinite("replay", str(folder), folder=tmp_path)
    assert again.returncode == 0 and "Reproduced" in again.stdout

    test = tmp_path / "test_it.py"
    applied = stayfinite("replay", str(folder), "--test", str(test), "--apply", folder=tmp_path)
    assert applied.returncode == 0, applied.stderr
    assert "Proved again" in applied.stdout
    assert (tmp_path / "train.py.orig").read_text() == SCRIPT
    assert pytest_of(test) == 0
    cured, _ = script.read_text(), script.write_text(SCRIPT)
    assert pytest_of(test) == 1
    script.write_text(cured)

    changed = stayfinite("replay", str(folder), "--apply", folder=tmp_path)
    assert changed.returncode == 2 and "no longer has the lines" in changed.stderr
    assert "has changed" in stayfinite("replay", str(folder), folder=tmp_path).stdout


@pytest.mark.long
def test_nothing_is_tried_without_prove(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = stayfinite("run", "--no-prove", "--run-dir", "run", "train.py", folder=tmp_path)
    incident = json.loads((tmp_path / "run" / "incidents" / "0001" / "incident.json").read_text())
    assert incident["tried"] == [] and incident["patch"] is None and "Proved" not in done.stderr


def test_an_incident_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    done = stayfinite("replay", str(tmp_path), folder=tmp_path)
    assert done.returncode == 2 and "no incident" in done.stderr


QUOTES = """import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(16)


class Returns(Dataset):
    def __init__(self):
        self.prices = 100 + torch.randn(48, 11).cumsum(1)
        self.prices[30, 4] = 0.0

    def __len__(self):
        return 48

    def __getitem__(self, i):
        p = self.prices[i]
        r = (p[1:] - p[:-1]) / p[:-1]
        return r[:-1], r[-1:]


model = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in DataLoader(Returns(), batch_size=8):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.long
def test_where_a_bad_batch_was_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUOTES)
    stayfinite("run", "--run-dir", "run", "train.py", folder=tmp_path)
    incident = json.loads((tmp_path / "run" / "incidents" / "0001" / "incident.json").read_text())
    made = QUOTES.splitlines().index("        r = (p[1:] - p[:-1]) / p[:-1]") + 1
    assert incident["findings"][0]["cause"] == "DATA_NONFINITE" and incident["birth"]["line"] != made
    assert incident["proof_remark"].endswith(f"made earlier, at line {made}: that is what is changed")
    assert f"@@ -{made - 3}," in incident["patch"]
