"""`stayfinite replay INCIDENT --apply` for incidents that a guard in the user's own script has written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import preloaded
from stayfinite import Guard
from stayfinite.cli import main
from stayfinite.sandbox import support
from stayfinite.sandbox.fork import obstacle

pytestmark = pytest.mark.skipif(
    support.sandbox().kind == "none" or obstacle() is not None, reason="no sandbox, or no fork"
)

STEPS = """import sys
import torch
from torch import nn
from stayfinite import Guard


def loss_of(model, x):
    return (model(x) / x.sum(1, keepdim=True)).pow(2).mean()


def make():
    return nn.Linear(4, 1), loss_of


if __name__ == "__main__":
    torch.manual_seed(int(sys.argv[1]))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = [torch.rand(8, 4) for _ in range(4)]
    batches[2][5] = 0.0
    guard = Guard(model, optimizer, run_dir="run", quiet=True)
"""
LOOPS = {
    "step": """    for x in batches:
        guard.step(loss_of, model, x)
""",
    "watch": """    for x in guard.watch(batches):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
""",
}


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "STAYFINITE_PROVE"}
    return preloaded.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.long
@pytest.mark.parametrize("way", ["step", "watch"])
def test_a_patch_of_a_guards_incident_is_written_and_proved_again(tmp_path: Path, way: str) -> None:
    script, text = tmp_path / "train.py", STEPS + LOOPS[way]
    script.write_text(text)
    assert python("train.py", "0", folder=tmp_path).returncode == 0
    incident = tmp_path / "run" / "incidents" / "0001"
    assert json.loads((incident / "incident.json").read_text())["patch"]
    replay = ("-m", "stayfinite", "replay", str(incident))

    again = python(*replay, folder=tmp_path)
    assert again.returncode == 0 and "Reproduced: the same failure at the same line." in again.stdout
    assert script.read_text() == text
    applied = python(*replay, "--apply", folder=tmp_path)
    assert applied.returncode == 0 and "Proved again: the patched script" in applied.stdout, applied.stderr
    assert (tmp_path / "train.py.orig").read_text() == text and "torch.where" in script.read_text()

    changed = python(*replay, "--apply", folder=tmp_path)  # the line is another one now
    assert changed.returncode == 2 and "no longer has the lines" in changed.stderr


def divided(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) / x.sum(1, keepdim=True)).pow(2).mean()  # type: ignore[no-any-return]


def refused(folder: Path, patch: str) -> Path:
    """A refused step of this very process, which is no script, with a patch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), 0.01), run_dir=folder / "run", quiet=True, prove="stop"
    )
    batch = torch.rand(8, 4)
    batch[5] = 0.0
    assert guard.step(divided, model, batch).incident is not None
    incident = folder / "run" / "incidents" / "0001"
    told = json.loads((incident / "incident.json").read_text())
    (incident / "incident.json").write_text(json.dumps({**told, "patch": patch}))
    return incident


def patch_of(file: Path, new: str) -> str:
    old = "    return (model(x) / x.sum(1, keepdim=True)).pow(2).mean()"
    return f"--- a{file}\n+++ b{file}\n@@ -8,1 +8,1 @@\n-{old}\n+{new}\n"


@pytest.mark.parametrize("helps", [True, False])
def test_a_step_is_proved_again_with_the_function_that_gives_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    monkeypatch.setenv("STAYFINITE_PROVE", "stop")
    name = f"own_training_{helps}".lower()
    script = tmp_path / f"{name}.py"
    script.write_text(STEPS)
    divisor = "x.sum(1, keepdim=True)" + (".clamp(min=1e-3)" if helps else " * 1.0")
    incident = refused(tmp_path, patch_of(script, f"    return (model(x) / ({divisor})).pow(2).mean()"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(main, ["replay", str(incident), "--apply", "--step", f"{name}:make"])
    if helps:
        assert done.exit_code == 0 and "finite with the patched source" in done.output, done.output
        assert divisor in script.read_text() and script.with_name(f"{name}.py.orig").read_text() == STEPS
    else:
        assert done.exit_code == 1 and "Taken back: the step still fails, at line 8" in done.output, (
            done.output
        )
        assert script.read_text() == STEPS and not script.with_name(f"{name}.py.orig").exists()


def test_without_a_way_to_prove_it_again_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAYFINITE_PROVE", "stop")
    script = tmp_path / "own.py"
    script.write_text(STEPS)
    incident = refused(tmp_path, patch_of(script, "    return model(x).mean()"))
    done = CliRunner().invoke(main, ["replay", str(incident), "--apply"])
    assert done.exit_code == 2 and "could not be proved again, and none is written" in " ".join(
        done.output.split()
    )
    assert script.read_text() == STEPS
