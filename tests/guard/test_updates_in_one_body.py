"""A body with two updates of its own: the second is refused after the first has changed the weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from stayfinite import Guard


def test_what_an_earlier_loss_would_be_with_the_new_weights_is_not_what_went_wrong(tmp_path: Path) -> None:
    """The body once more: the critic's loss fails too, with the weights that its own update has made since."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    maker = nn.Linear(2, 4)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e18)
    for_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    guard = Guard([critic, maker], [for_critic, for_maker], run_dir=tmp_path, prove="off", quiet=True)
    for x in guard.watch(DataLoader(torch.randn(8, 4), batch_size=8)):
        for_critic.zero_grad()
        real = critic(x).mean()
        real.backward()
        for_critic.step()
        for_maker.zero_grad()
        made = (critic(maker(x[:, :2])) ** 2).mean()
        made.backward()
        for_maker.step()
    guard.close()
    (path,) = (tmp_path / "incidents").glob("*/incident.json")
    incident = json.loads(path.read_text())
    lines = Path(__file__).read_text().splitlines()
    assert incident["step"] == 1
    at = incident["birth"]["line"] if incident["birth"] else None
    assert at is None or "real = critic" not in lines[at - 1], lines[at - 1]
    told = incident["findings"][0]
    assert (
        told["code"] == "RUN010" and told["evidence"]["lr"] == 1e18
    )  # not that of the optimizer that was refused
