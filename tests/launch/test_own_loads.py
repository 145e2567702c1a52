"""A state that was saved and loaded after a refused step: what a second run had in it is no finding of the run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import preloaded

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
images = torch.rand(64, 6)
images[20] = 0.5


class Scaled(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = images[i] - images[i].mean()
        x /= x.abs().mean()
        return x


loader = DataLoader(Scaled(), batch_size=8)


def train(net, centre):
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(2):
        for x in loader:
            loss = (net(x) - centre).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()


first = nn.Linear(6, 6)
train(first, 0.0)
with torch.no_grad():
    centre = torch.cat([first(x) for x in loader]).mean(0)
torch.save({"net": first.state_dict(), "centre": centre.tolist()}, "first.pt")
stored = torch.load("first.pt")
second = nn.Linear(6, 6)
second.load_state_dict(stored["net"])
train(second, torch.tensor(stored["centre"]))
"""


def test_the_first_failure_is_its_own_cause(tmp_path: Path) -> None:
    script, output = tmp_path / "train.py", tmp_path / "incidents.json"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "stayfinite", "run", "--format", "json", "--output", str(output)]
    said = preloaded.run(
        [*command, str(script)], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ).stderr
    incidents = json.loads(output.read_text())["incidents"]
    assert incidents[0]["step"] == 2 and incidents[0]["findings"][0]["code"] == "DAT012", said
    codes = {finding["code"] for incident in incidents for finding in incident["findings"]}
    assert "STA032" not in codes, said
    assert "No update of that optimizer could be applied" in said
