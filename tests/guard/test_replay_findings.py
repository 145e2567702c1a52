"""What the replay of a refused step explains comes before the symptoms that the guard sees without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from stayfinite import Guard, RunStopped


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_a_bad_update_is_explained_by_the_arithmetic_of_the_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4).half()
    guard = Guard(model, torch.optim.AdamW(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True)
    x = torch.randn(16, 8).half() * 1e-2
    result = guard.step(lambda: model(x).float().square().mean(), batch=x)
    assert result.incident is not None
    first = result.incident.findings[0]
    assert (first.code, first.cause) == ("STA021", "PURE_LOWP_OPTIMIZER")
    assert first.file == __file__ and first.evidence["eps"] == 1e-8
    assert [finding.code for finding in result.incident.findings] == ["STA021"], "what came of it is no cause"


class Overflowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            out: torch.Tensor = self.second(self.norm(self.first(x)))
        return out


def test_a_buffer_that_went_bad_in_the_step_is_not_its_cause(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Overflowing()
    with torch.no_grad():
        model.first.weight.mul_(3e4)
    guard = Guard(model, torch.optim.SGD(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True)
    x = torch.randn(16, 8) * 10

    def loss() -> torch.Tensor:
        out: torch.Tensor = model(x)
        guard.observe(out=out, x=x)
        return out.float().square().mean()

    result = guard.step(loss, batch=x)
    assert result.incident is not None
    causes = [finding.cause for finding in result.incident.findings]
    assert causes[0] == "FP16_OVERFLOW" and "STATE_POISONED" in causes[1:]
    written = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
    seen = {tensor["name"]: tensor for tensor in written["observed"]}
    assert seen["out"]["nan"] + seen["out"]["inf"] > 0 and seen["x"]["nan"] + seen["x"]["inf"] == 0
    assert seen["x"]["shape"] == [16, 8]


def test_state_that_was_bad_before_the_step_stays_the_cause(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 1))
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True, check_every=1000
    )
    x = torch.randn(16, 8)
    for _ in range(3):  # before the steps 0, 1, 2 and 4 a copy is taken, and all state looked at
        guard.step(lambda: model(x).square().mean(), batch=x)
    running = model[1].running_mean
    assert isinstance(running, torch.Tensor)
    running[0] = torch.nan
    result = guard.step(lambda: model(x).square().mean(), batch=x)
    assert result.incident is not None and result.incident.findings[0].cause == "STATE_POISONED"


def test_a_run_that_fails_at_every_step_says_so_and_why(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4).half()
    guard = Guard(model, torch.optim.AdamW(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True)
    x = torch.randn(16, 8).half() * 1e-2
    with pytest.raises(RunStopped) as stopped:
        for _ in range(20):
            guard.step(lambda: model(x).float().square().mean(), batch=x)
    message = str(stopped.value)
    assert "Cause: STA021 half-optimizer-update" in message and "Fix: keep float32" in message
    assert f"It began at {Path(__file__).name}:" in message
    assert "No update could be applied at all" in message
    assert stopped.value.checkpoint is not None
    saved = torch.load(stopped.value.checkpoint, weights_only=True)["model"]
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
