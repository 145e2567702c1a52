"""RUN022 on real runs: a decay that leaves its domain makes the learning rate NaN; one that ends at 0 does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from stayfinite import Guard, RunStopped


@pytest.mark.parametrize(("least", "codes"), [(float("nan"), ["RUN022"]), (0.0, [])])
def test_a_decay_beyond_its_last_step(least: float, codes: list[str], tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True, prove="off")
    try:
        for step in range(12):
            left = 1 - step / 10
            optimizer.param_groups[0]["lr"] = 0.1 * left**0.9 if left >= 0 else least
            guard.step(lambda: model(torch.ones(4, 2)).square().mean())
    except RunStopped:
        assert codes
    guard.close()
    found = [
        finding
        for file in sorted(tmp_path.glob("incidents/*/incident.json"))
        for finding in json.loads(file.read_text())["findings"]
    ]
    assert [finding["code"] for finding in found][:1] == codes
    for finding in found[:1]:
        assert finding["cause"] == "CONFIG_MISTAKE" and finding["evidence"]["rate"] == "nan"
        assert "the learning rate of SGD is nan; it was 0 at step 10" in finding["message"]
