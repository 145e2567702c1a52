"""A real run that goes bad before step 1400: the last good checkpoint, the first bad tensor, and the repair."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner, Result
from torch import Tensor, nn

from stayfinite.checkpoint import verify
from stayfinite.cli import main

torch.set_num_threads(1)
BAD_FROM = 1350


class TwoHeads(nn.Module):
    """A classifier, and a head that predicts the length of detached features: the root's gradient at 0 is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU())
        self.classes = nn.Linear(32, 2)
        self.length = nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.classes(self.trunk(x)), self.length(x).square().sum(1).sqrt()


class Run:
    """The training; everything it needs to go on is in `state`."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = TwoHeads()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=4e-3, total_steps=2000)

    def step(self, number: int, blank: bool) -> Tensor:
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(number))
        if blank:
            x[5] = 0  # an empty sample, as data sets have
        logits, length = self.model(x)
        loss = F.cross_entropy(logits, (x.sum(1) > 0).long()) + F.mse_loss(length, x.norm(dim=1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()

    def state(self, step: int) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {"step": step, **{name: part.state_dict() for name, part in parts.items()}}

    def load(self, path: Path) -> None:
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    run = Run()
    for step in range(1, 1501):
        run.step(step, blank=step == BAD_FROM)
        if step % 100 == 0:
            torch.save(run.state(step), made / f"step_{step}.pt")
    return made


def scan(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["scan", *map(str, arguments)])


def test_last_good_names_the_predecessor_the_tensor_and_the_rate(folder: Path) -> None:
    result = scan(folder, "--last-good")
    assert result.exit_code == 1
    saved = torch.load(folder / "step_1300.pt")
    rate = saved["optimizer"]["param_groups"][0]["lr"]
    assert f"last good: {folder / 'step_1300.pt'} (step 1300)" in result.output
    assert f"trouble starts in {folder / 'step_1400.pt'} (step 1400)" in result.output
    assert "first bad tensor: model.length.weight (weights)" in result.output
    assert f"learning rate  {rate:.4g} now" in result.output
    assert "0.004 peak" in result.output
    line = next(
        line for line in result.output.splitlines() if "model.length.weight" in line and "nan" in line
    )
    assert line.rstrip().endswith("x")
    assert len(result.output.splitlines()) <= 50


def test_last_good_in_json(folder: Path) -> None:
    report = json.loads(scan(folder, "--last-good", "--format", "json").output)
    past = report["last_good"]
    assert (past["step"], past["first_bad_step"]) == (1300, 1400)
    assert past["first_bad_tensors"][0] == "model.length.weight"
    norms = next(row["norms"] for row in past["norms"] if row["tensor"] == "model.length.weight")
    expected = torch.load(folder / "step_1300.pt")["model"]["length.weight"].norm().item()
    assert norms[-2] == pytest.approx(expected, rel=1e-5)
    assert norms[-1] == "nan"


def test_repair_gives_a_file_that_trains_on(folder: Path, tmp_path: Path) -> None:
    bad, good, out = folder / "step_1400.pt", folder / "step_1300.pt", tmp_path / "repaired.pt"
    before = hashlib.sha256(bad.read_bytes()).hexdigest()
    result = scan(bad, "--repair", out, "--from", good)
    assert result.exit_code == 0, result.output
    assert hashlib.sha256(bad.read_bytes()).hexdigest() == before
    assert [path.name for path in tmp_path.iterdir()] == ["repaired.pt"]
    # The replaced moments have made 1300 updates, the others 1400: said, and harmless.
    assert [(f.code, f.severity.value) for f in verify(out).findings] == [("CKP012", "info")]

    mended, old, donor = torch.load(out), torch.load(bad), torch.load(good)
    names = [name for name, _ in TwoHeads().named_parameters()]
    number = names.index("length.weight")
    for name in names:
        source = donor if name == "length.weight" else old
        assert torch.equal(mended["model"][name], source["model"][name])
    for role, value in mended["optimizer"]["state"][number].items():
        assert torch.equal(value, donor["optimizer"]["state"][number][role]), role
    assert mended["step"] == 1400
    assert mended["optimizer"]["param_groups"] == old["optimizer"]["param_groups"]

    run = Run()
    run.load(out)
    losses = torch.stack([run.step(step, blank=False) for step in range(1401, 1501)])
    assert torch.isfinite(losses).all()
    fresh = Run()
    assert losses.mean() < fresh.step(1, blank=False)


def test_repair_refuses(folder: Path, tmp_path: Path) -> None:
    bad, good = folder / "step_1400.pt", folder / "step_1300.pt"
    share = scan(bad, "--repair", tmp_path / "a.pt", "--from", good, "--max-share", "0.01")
    assert share.exit_code == 1
    assert "more than the 1% allowed" in share.output
    also_bad = scan(bad, "--repair", tmp_path / "a.pt", "--from", folder / "step_1500.pt")
    assert "is bad in" in also_bad.output
    nothing = scan(good, "--repair", tmp_path / "a.pt", "--from", bad)
    assert "nothing to repair" in nothing.output
    exists = scan(bad, "--repair", good, "--from", good)
    assert "exists already" in exists.output
    assert scan(bad, "--repair", tmp_path / "a.pt").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_cut_off_while_it_was_written_is_not_the_last_good(folder: Path, tmp_path: Path) -> None:
    for step in (1100, 1200):
        (tmp_path / f"step_{step}.pt").write_bytes((folder / f"step_{step}.pt").read_bytes())
    (tmp_path / "step_1300.pt").write_bytes((folder / "step_1300.pt").read_bytes()[:9000])
    result = scan(tmp_path, "--last-good", "--format", "json")
    assert result.exit_code == 2
    past = json.loads(result.output)["last_good"]
    assert (past["step"], past["first_bad_step"]) == (1200, 1300)
