"""`stayfinite run`: state that a batch has poisoned, and that the script did not train on, is a failure of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.running import guarded

SKIPS = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(320, 6)
    x[105, 3] = float("inf")
    for start in range(0, 320, 16):
        loss = net(x[start:start + 16]).square().mean()
        if torch.isnan(loss):
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.long
def test_repaired_statistics_are_reported_and_located(tmp_path: Path) -> None:
    done = guarded(tmp_path, SKIPS, "--no-prove", "--format", "json", "--output", "found.json")
    assert "1.running_mean, 1.running_var held NaN or Inf; as at step 4 again" in done.stderr
    incident = json.loads((tmp_path / "found.json").read_text())["incidents"][0]
    assert incident["findings"][0]["cause"] == "STATE_POISONED" and incident["step"] == 6
    assert incident["birth"]["line"] == 9  # where the script wrote it down
