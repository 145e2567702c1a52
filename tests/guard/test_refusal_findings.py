"""What a refused step is found to be (STA010 to STA012, DAT001, RUN001), and the healthy runs that show none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.swa_utils import AveragedModel

from guard.models import CNN, images
from stayfinite import Guard, Policy

NAN, INF = float("nan"), float("inf")


class Run:
    """A small training on which things can go wrong."""

    def __init__(self, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = CNN(4)
        self.optimizer = SGD(self.model.parameters(), 0.05, momentum=0.9)
        self.guard = Guard(self.model, self.optimizer, run_dir=folder, quiet=True, **options)

    def steps(self, count: int, seed: int = 0) -> list[Any]:
        return [self.step(x, y) for x, y in images(count, seed=seed)]

    def step(self, x: Tensor, y: Tensor, factor: float = 1.0) -> Any:
        return self.guard.step(
            lambda: F.cross_entropy(self.model(x), y) * factor, batch={"image": x, "label": y}
        )

    def found(self, result: Any) -> list[str]:
        """The codes of its incident, which the file holds too."""
        assert result.applied is False and result.incident is not None
        newest = max((self.folder / "incidents").glob("*/incident.json"))
        written = json.loads(newest.read_text(encoding="utf-8"))
        codes = [finding.code for finding in result.incident.findings]
        assert [finding["code"] for finding in written["findings"]] == codes and written[
            "step"
        ] == result.step
        return codes


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_batch_that_is_not_finite(tmp_path: Path, value: float) -> None:
    run = Run(tmp_path)
    run.steps(3)
    x, y = images(1, seed=5)[0]
    x[2, 0, 1, 1] = value
    result = run.step(x, y)
    assert "DAT001" in run.found(result)
    (found,) = [f for f in result.incident.findings if f.code == "DAT001"]
    assert found.evidence["name"] == "batch['image']" and found.evidence["nan"] + found.evidence["inf"] == 1


def test_a_bad_loss_of_a_good_batch_is_not_the_batchs_fault(tmp_path: Path) -> None:
    run = Run(tmp_path)
    result = run.step(*images(1)[0], factor=NAN)
    assert "DAT001" not in run.found(result) and result.incident.trigger == "loss"


def test_what_the_guard_itself_asks_is_no_check_of_the_script(tmp_path: Path) -> None:
    """It counts NaN in an infinite loss: nobody's `isnan`, which could not have seen the infinity."""
    run = Run(tmp_path)
    (x, y), _ = images(2)
    assert "RUN012" not in run.found(run.step(x, y, factor=INF))


def test_infinities_in_a_batch_that_trains_well_are_no_finding(tmp_path: Path) -> None:
    """An additive mask of -inf is part of many batches."""
    run = Run(tmp_path)
    for x, y in images(5):
        batch = {"image": x, "mask": torch.full((4, 4), -INF).triu(1)}
        result = run.guard.step(lambda x=x, y=y: F.cross_entropy(run.model(x), y), batch=batch)
        assert result.applied and result.incident is None


def test_one_batch_far_out_of_scale(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.model.eval()  # batch norm would rescale the batch
    assert all(result.applied for result in run.steps(60))
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    x, y = images(1, seed=8)[0]
    result = run.step(x * 1e4, y)
    assert "RUN001" in run.found(result) and result.incident.trigger == "spike"
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert all(result.applied for result in run.steps(20, seed=9)), "the run goes on"
    assert run.guard.counters.spikes == 1


def test_noise_a_new_level_and_a_warning_only_policy(tmp_path: Path) -> None:
    run = Run(tmp_path / "noisy")
    noise = torch.Generator().manual_seed(0)
    for x, y in images(150):
        factor = float(torch.randn((), generator=noise).mul(0.7).exp())
        assert run.step(x, y, factor).applied, "a loss that varies by factors of five is this run's own noise"

    level = Run(tmp_path / "level", clip_norm=0.1)
    level.steps(60)
    results = [level.step(x, y, 1e6) for x, y in images(12, seed=3)]
    refused = [result for result in results if not result.applied]
    assert 1 <= len(refused) <= 3, "a loss that stays at its new level is taken for it"

    warned = Run(tmp_path / "warned", policy=Policy(spikes="warn"))
    warned.model.eval()
    warned.steps(60)
    x, y = images(1, seed=8)[0]
    assert warned.step(x * 1e4, y).applied


@pytest.mark.parametrize("where", ["parameter", "moment", "buffer", "ema"])
def test_poisoned_state_is_found_and_rolled_back(tmp_path: Path, where: str) -> None:
    run = Run(tmp_path, check_every=1, snapshot_every=4)
    average = AveragedModel(run.model)
    run.guard.close()
    run.guard = Guard(
        run.model,
        run.optimizer,
        ema=average,
        run_dir=tmp_path / "b",
        quiet=True,
        check_every=1,
        snapshot_every=4,
    )
    run.folder = tmp_path / "b"
    run.steps(6)
    weight = run.model.features[0].weight
    tensor = {
        "parameter": weight,
        "moment": run.optimizer.state[weight]["momentum_buffer"],
        "buffer": run.model.features[1].running_mean,
        "ema": next(average.parameters()),
    }[where]
    with torch.no_grad():
        tensor.view(-1)[0] = NAN
    result = run.step(*images(1, seed=4)[0])
    assert result.applied and run.guard.bad_state() == []
    (incident,) = (run.folder / "incidents").iterdir()
    codes = [found["code"] for found in json.loads((incident / "incident.json").read_text())["findings"]]
    assert "STA011" in codes and "STA012" not in codes
    events = [
        json.loads(line) for line in (run.folder / "run.jsonl").read_text().splitlines() if '"event"' in line
    ]
    (mended,) = [e for e in events if e["event"] in ("repair", "rollback")]
    assert (
        mended["event"] == ("rollback" if where == "parameter" else "repair") and "step 4" in mended["what"]
    )
    assert all(result.applied for result in run.steps(5, seed=6))


def test_an_update_that_is_bad_in_itself(tmp_path: Path) -> None:
    """Adam on float16: eps is 0 there, and where the gradient's square underflows it divides 0 by 0."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4).half()
    guard = Guard(model, Adam(model.parameters(), 1e-3), run_dir=tmp_path, quiet=True)
    before = model.weight.detach().clone()
    result = guard.step(lambda: (model(torch.full((2, 8), 1e-4, dtype=torch.float16)) * 1e-2).float().mean())
    assert result.applied is False and result.incident is not None
    (found,) = [f for f in result.incident.findings if f.code in ("STA012", "STA021")]
    assert found.cause == "PURE_LOWP_OPTIMIZER" and result.incident.phase == "optimizer"
    assert torch.equal(model.weight, before) and guard.bad_state() == []


def amp_run(folder: Path, scale: float, **policy: Any) -> tuple[nn.Module, Any, Guard]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    guard = Guard(
        model,
        SGD(model.parameters(), 1e-3),
        scaler=scaler,
        run_dir=folder,
        quiet=True,
        policy=Policy(**policy),
    )
    return model, scaler, guard


def overflowing(model: nn.Module, gradient: float) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return (model(torch.ones(2, 4)) * gradient).sum()


def test_an_ordinary_back_off_is_counted_and_no_finding(tmp_path: Path) -> None:
    model, scaler, guard = amp_run(tmp_path, scale=2.0**14)
    results = [guard.step(lambda: overflowing(model, 100.0)) for _ in range(12)]
    backed_off = [result for result in results if result.action == "backoff"]
    assert backed_off and results[-1].applied and scaler.get_scale() < 2.0**14
    assert all(result.incident is None for result in results) and not (tmp_path / "incidents").exists()
    assert guard.counters.backoffs == len(backed_off) and guard.counters.skipped == 0


def test_a_scale_that_collapses_is_held_at_its_floor_and_found(tmp_path: Path) -> None:
    model, scaler, guard = amp_run(tmp_path, scale=4.0)

    def never_finite() -> Tensor:
        return (
            overflowing(model, 1.0) + (0 * model.weight).sum().sqrt()
        )  # a finite loss with the gradient 0 * inf

    results = [guard.step(never_finite) for _ in range(5)]
    collapsed = [r for r in results if r.incident and "STA010" in [f.code for f in r.incident.findings]]
    assert collapsed and scaler.get_scale() == 1.0
    assert guard.step(lambda: overflowing(model, 1.0)).applied
    assert guard.bad_state() == []
