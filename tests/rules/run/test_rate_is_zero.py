"""RUN015 on real runs: a schedule that stays at zero, and a warm-up from zero whose first update never comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from stayfinite import Guard, RunStopped


@pytest.mark.parametrize(("loss", "codes"), [(1.0, ["RUN015"]), (float("nan"), [])])
def test_a_warm_up_that_waits_for_its_first_update_is_no_rate_of_zero(
    loss: float, codes: list[str], tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // 1000)
    guard = Guard(model, optimizer, schedule, run_dir=tmp_path, quiet=True, locate=False)
    try:
        for _ in range(12):
            guard.step(lambda: model(torch.ones(4, 2)).mean() * loss)
    except RunStopped:
        assert guard.counters.applied == 0
    guard.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    found = [line["finding"]["code"] for line in lines if line.get("event") == "finding"]
    assert [code for code in found if code == "RUN015"] == codes
