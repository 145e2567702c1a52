"""How far an update went is on the record of that update, also where an optimizer evaluates the loss itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stayfinite import Guard


@pytest.mark.parametrize(
    "options", [{"kind": "SGD"}, {"kind": "LBFGS", "max_iter": 1}], ids=lambda o: o["kind"]
)
def test_the_update_that_went_too_far_is_named_with_its_own_learning_rate(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model, (kind, *_) = nn.Linear(3, 1), options.values()
    more = {name: value for name, value in options.items() if name != "kind"}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **more)
    guard = Guard(model, optimizer, run_dir=tmp_path, policy="skip", prove="off", quiet=True)
    x = torch.randn(8, 3)
    for step in range(5):
        optimizer.param_groups[0]["lr"] = 5e3 if step == 2 else 0.01
        guard.step(lambda data: model(data).square().exp().mean(), x)
    guard.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    sizes = {line["step"]: line.get("update_ratio", 0.0) for line in lines if "event" not in line}
    assert max(sizes, key=sizes.__getitem__) == 3, sizes  # it is known when the next step is looked at
    incident = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
    assert incident["step"] == 3
    told = incident["findings"][0]
    assert (told["code"], told["evidence"]["lr"]) == ("RUN010", 5e3)
