"""RUN019 names the growth behind an overflow; blocks with a gain of 1 are silent, and so is a lone overflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.findings import Incident


class Streams(nn.Module):
    """A read-out over 8 streams: a sum of sigmoids enlarges the signal, a softmax does not."""

    def __init__(self, *, convex: bool) -> None:
        super().__init__()
        self.gates, self.convex = nn.Parameter(torch.zeros(8)), convex

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.gates, 0) if self.convex else torch.sigmoid(self.gates)
        return (weights[:, None, None] * x.expand(8, *x.shape)).sum(dim=0)


class Net(nn.Module):
    def __init__(self, *, convex: bool, blocks: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.blocks = nn.Sequential(*(Streams(convex=convex) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            out: Tensor = self.last(self.blocks(self.first(x)))
        return out.float()


def train(folder: Path, net: nn.Module, inputs: list[Tensor]) -> list[Incident]:
    guard = Guard(net, torch.optim.SGD(net.parameters(), 1e-9), run_dir=folder, quiet=True)
    for x in inputs:
        guard.step(lambda x=x: net(x).pow(2).mean())
    guard.close()
    files = sorted((folder / "incidents").glob("*/incident.json"))
    return [Incident.from_json(json.loads(file.read_text())) for file in files]


def inputs(scale: float, count: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(16, 8) * scale for _ in range(count)]


def test_growth_through_blocks_is_named_before_the_overflow(tmp_path: Path) -> None:
    torch.manual_seed(1)
    incident = train(tmp_path, Net(convex=False), inputs(30.0))[0]
    first = incident.findings[0]
    assert (first.code, first.cause) == ("RUN019", "FP16_OVERFLOW")
    assert "x 4 in each of 6 `Streams`" in first.message and ".sum(dim=0)`)" in first.message
    assert "NUM021" not in [finding.code for finding in incident.findings[:1]]
    growth = incident.to_json()["growth"]
    gains = [row["gain"] for row in growth["by_depth"] if row["kind"] == "Streams"]  # type: ignore[index, call-overload, union-attr]
    assert len(gains) == 6 and all(gain == pytest.approx(4.0, rel=0.01) for gain in gains)


def test_the_same_net_with_a_gain_of_one_is_silent(tmp_path: Path) -> None:
    torch.manual_seed(1)
    assert train(tmp_path, Net(convex=True), inputs(30.0)) == []
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    codes = {line["finding"]["code"] for line in lines if line.get("event") == "finding"}
    assert not codes & {"RUN018", "RUN019"}


def test_an_overflow_that_no_growth_led_to_is_not_blamed_on_growth(tmp_path: Path) -> None:
    torch.manual_seed(1)
    incident = train(tmp_path, Net(convex=True), [*inputs(1.0), *inputs(60_000.0, 1)])[0]
    codes = [finding.code for finding in incident.findings]
    assert "NUM021" in codes and "RUN019" not in codes


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.relu(self.up(x)))
        return out


def test_gains_that_one_absurd_update_made_are_the_learning_rates(tmp_path: Path) -> None:
    """Ordinary blocks; one update at a rate far too high makes each of them enlarge what it is given."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), *(Residual() for _ in range(6)), nn.Linear(16, 1))
    guard = Guard(net, torch.optim.SGD(net.parameters(), 0.4), run_dir=tmp_path, quiet=True, prove="off")
    for x in inputs(1.0, 6):
        guard.step(lambda x=x: (net(x) - 5.0).pow(2).mean())
    guard.close()
    found = json.loads(sorted((tmp_path / "incidents").glob("*/incident.json"))[0].read_text())
    codes = [finding["code"] for finding in found["findings"]]
    assert codes[0] == "RUN010" and "RUN019" not in codes
