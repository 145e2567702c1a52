"""`stayfinite run` on optimizers that are given a closure: the first forward pass is inside of the first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.running import guarded, plain

# The whole data is one batch, as optimizers of this kind like it: no DataLoader says where a step begins.
SCRIPT = """
    import json
    import sys

    import torch
    from torch import nn

    torch.manual_seed(0)
    x, y = torch.randn(20, 4), torch.randn(20, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=0.5)
    begun = [p.detach().clone() for p in model.parameters()]
    bad = json.loads(sys.argv[2])
    seen = []
    for step in range(4):
        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x * float("nan") if step in bad else x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
        seen.append([p.detach().flatten().tolist() for p in model.parameters()])
    print(json.dumps({"seen": seen, "rates": [g["lr"] for g in optimizer.param_groups]}))
"""


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("LBFGS", [0]),
        ("Adam", [0, 1, 2, 3]),
        pytest.param("Adam", [0], marks=pytest.mark.long),
        pytest.param("LBFGS", [0, 1, 2, 3], marks=pytest.mark.long),
    ],
)
def test_a_bad_first_step_is_refused_before_it_is_seen(tmp_path: Path, kind: str, bad: list[int]) -> None:
    alone = json.loads(plain(tmp_path, SCRIPT, kind, "[]").stdout)
    ended = guarded(tmp_path, SCRIPT, "--locate", "off", arguments=(kind, json.dumps(bad)))
    told = json.loads(ended.stdout)
    assert told["rates"] == [0.5]  # the script's own
    good = [step for step in range(4) if step not in bad]
    for number, step in enumerate(good):  # as if the bad steps had not been there
        assert told["seen"][step] == alone["seen"][number]
    assert "NaN" not in ended.stdout
    assert ended.stderr.count("the loss is nan; the update is not applied") == 1
    assert "rolled back to" not in ended.stderr
