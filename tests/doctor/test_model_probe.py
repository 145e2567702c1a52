"""The doctor has the project's factory probed: in a sandbox, and only where there is one."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import preloaded
from doctor.test_five_systems import BEFORE, copied
from stayfinite.doctor.model_probe import find_factory
from stayfinite.sandbox import support

needs_sandbox = pytest.mark.skipif(support.sandbox().kind != "namespaces", reason="needs a sandbox")

_GROWS = """
import pathlib
import torch
from torch import nn

pathlib.Path("trace.txt").write_text("the project's code was here")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Linear(16, 16)
        nn.init.normal_(self.mlp.weight)

    def forward(self, x):
        return x + self.mlp(x)


def factory():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.Sequential(*[Block() for _ in range(6)]), nn.Linear(16, 1))
    return model, (torch.randn(8, 4), torch.randn(8, 1)), nn.MSELoss(), torch.optim.AdamW(model.parameters(), 1e-3)
"""


def _doctor(folder: Path, *options: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    done = preloaded.run(
        [sys.executable, "-m", "stayfinite", "doctor", ".", "--format", "json", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def _codes(answer: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in answer["findings"]}


@pytest.mark.long
@needs_sandbox
def test_growth_per_block_is_named_and_the_project_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(_GROWS)
    _, answer, said = _doctor(tmp_path)
    assert "PRB010" in _codes(answer)
    assert "in a sandbox" in said
    assert not (tmp_path / "trace.txt").exists()


def test_it_can_be_left_out_and_is_where_there_is_no_sandbox(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(_GROWS)
    _, answer, _ = _doctor(tmp_path, "--probe", "off")
    assert "PRB010" not in _codes(answer) and not answer["passed_over"]
    _, answer, _ = _doctor(tmp_path, STAYFINITE_SANDBOX="none")
    assert "PRB010" not in _codes(answer)
    assert "no sandbox" in answer["passed_over"][0]
    assert not (tmp_path / "trace.txt").exists()


@pytest.mark.long
@needs_sandbox
def test_a_factory_that_fails_is_passed_over_or_refused_where_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("def factory():\n    raise RuntimeError('no data here')\n")
    code, answer, _ = _doctor(tmp_path)
    assert code == 0 and "no data here" in answer["passed_over"][0]
    code, answer, said = _doctor(tmp_path, "--probe", "probe.py:factory")
    assert code == 2 and "no data here" in said and not answer


def test_which_factory(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert find_factory(root, None, None, None) is None
    (tmp_path / "probe.py").write_text("def factory(path):\n    return 1\n")
    assert find_factory(root, None, None, None) is None  # it takes something: not a factory of ours
    (tmp_path / "probe.py").write_text("def factory(seed=0):\n    return 1\n")
    found = find_factory(root, None, None, None)
    assert found is not None and found.name == "probe:factory" and not found.named
    named = find_factory(root, None, "train:make", tmp_path / "pyproject.toml")
    assert named is not None and named.name == "train:make" and named.named
    asked = find_factory(root, "other:make", "train:make", tmp_path / "pyproject.toml")
    assert asked is not None and asked.name == "other:make"


GROWTH = {"mhc_ocr": {"PRB010"}, "latent_dlm": {"PRB010"}, "temi_clustering": {"PRB004"}}
"""What only running the model shows: gains, growth per block, the gradient of a power."""


@needs_sandbox
@pytest.mark.long
@pytest.mark.parametrize("name", BEFORE)
def test_the_five_systems_before_any_training(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    code, answer, _ = _doctor(folder, "--budget", "0")
    assert code in (0, 1)
    assert BEFORE[name] | GROWTH.get(name, set()) <= _codes(answer)
    assert not answer["passed_over"]
    shutil.rmtree(folder)
