"""The directed search: an input for every mechanism, a printed test that fails, silence on the repaired twin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import preloaded
from probe.failing_inputs import CASES
from stayfinite.findings.subjects.probed_model import SearchResult
from stayfinite.probe import Probe, examine_model

pytestmark = pytest.mark.filterwarnings("ignore")


def search(probe: Probe, budget: float = 20.0) -> SearchResult:
    (result,) = examine_model(probe, only=["search"], budget=budget).subject.searches
    return result


@pytest.mark.parametrize("name", CASES)
def test_a_failing_input_is_found(name: str) -> None:
    result = search(CASES[name][0]())
    assert result.found, result.reason
    assert result.what and result.located.line is not None


@pytest.mark.parametrize("name", CASES)
def test_the_repaired_twin_has_none(name: str) -> None:
    result = search(CASES[name][1](), budget=0.1)
    assert not result.found, f"{result.condition}: {result.what}"
    assert result.reason


def test_descent_reaches_an_edge_that_no_guess_hits() -> None:
    """Only one corner of 2**24 (and its mirror image) leaves the domain of the root: the slope leads there."""
    torch.manual_seed(0)
    model = nn.Linear(24, 1, bias=False)
    with torch.no_grad():
        model.weight.mul_(2.1 / model.weight.abs().sum())

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return torch.sqrt(4 - model(x).pow(2)).mean()

    result = search(Probe(model, 0.1 * torch.randn(4, 24), loss, range=(-1, 1)))
    assert result.found and "driven towards the edge" in result.condition
    assert result.located.op == "sqrt" and result.located.explained_by == "NUM013"


def test_the_input_stays_inside_the_declared_range() -> None:
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 0.5)
    probe = Probe(model, torch.rand(4, 3), lambda m, x: torch.exp(m(x) * 6).mean(), range=(0, 1.5))
    assert not search(probe, budget=0.3).found
    probe.range = (0, 20)
    assert search(probe).found


def test_the_printed_test_fails_and_passes_once_repaired(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn
EPS = 0.0
def make():
    torch.manual_seed(0)
    model = nn.Linear(300, 2)
    batch = {"x": torch.randn(3, 300), "y": torch.tensor([0, 1, 0])}
    def loss(model, batch):
        gap = model(batch["x"]).abs().sum(-1)
        return (torch.log(30 - gap if EPS == 0 else (30 - gap).clamp_min(EPS)) * batch["y"]).mean()
    return {"model": model, "batch": batch, "loss": loss, "range": (-60, 60)}
"""
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "again.py").write_text("import test_mine\ntest_mine.test_stays_finite()\n")
    (tmp_path / "find.py").write_text(
        "import warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path\n"
        "from stayfinite.probe import examine_model, load\n"
        "found = examine_model(load('mine:make'), name='mine:make', only=['search'], budget=20).subject.searches[0]\n"
        "assert found.found\nPath('test_mine.py').write_text(found.test)\nimport again\n"
    )
    failing = _python(tmp_path, "find.py")
    assert failing.returncode == 1 and "assert failure_on" in failing.stderr, failing.stderr
    (tmp_path / "mine.py").write_text(source.replace("EPS = 0.0", "EPS = 1e-3"))
    assert _python(tmp_path, "again.py").returncode == 0


def _python(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, script]
    return preloaded.run(command, cwd=folder, timeout=120)
