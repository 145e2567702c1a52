"""A refused step is followed once more: its birth and cause are named, and nothing of the training changes by it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from guard.models import CNN, images
from stayfinite import Guard, Policy, RunStopped


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def line_of(text: str) -> int:
    """The line of this file on which a piece of source stands."""
    return next(
        i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text
    )


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum() / mask.sum()


def test_step_function_names_line_and_cause(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CNN()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)
    data = images(12)
    for i, (x, y) in enumerate(data):
        mask = torch.zeros(16) if i == 7 else torch.ones(16)
        before = [t.detach().clone() for t in [*model.parameters(), *model.buffers()]]
        state = torch.get_rng_state()
        result = guard.step(
            lambda x=x, y=y, mask=mask: masked_mean(F.cross_entropy(model(x), y, reduction="none"), mask),
            batch=(x, y),
        )
        if i == 7:
            assert result.incident is not None and result.incident.reproduced
            birth = result.incident.birth
            assert birth is not None and birth.file == __file__
            assert birth.line == line_of("return (x * mask).sum() / mask.sum()")
            assert result.incident.findings[0].cause == "EMPTY_REDUCTION"
            assert all(
                torch.equal(a, b)
                for a, b in zip(before, [*model.parameters(), *model.buffers()], strict=True)
            )
            assert torch.equal(state, torch.get_rng_state())
    written = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
    assert written["birth"]["line"] == line_of("return (x * mask).sum() / mask.sum()")


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(1)


def loader(bad: int | None, drop: int | None) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60 * 8, 4, generator=generator)
    weight = torch.ones(60 * 8)
    if bad is not None:
        weight[bad * 8 : bad * 8 + 8] = 0
    keep = [i for i in range(60 * 8) if drop is None or i // 8 != drop]
    return DataLoader(TensorDataset(x[keep], x[keep].sum(1), weight[keep]), batch_size=8)


def train_plain_loop(data: DataLoader[tuple[Tensor, ...]], run_dir: Path) -> tuple[list[Tensor], Guard, int]:
    """A user's own loop, with everything in it; only `guard.watch` was added."""
    torch.manual_seed(2)
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
    ema = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    guard = Guard(model, optimizer, scheduler, ema=ema, run_dir=run_dir, quiet=True)
    bodies = 0
    for x, y, weight in guard.watch(data):
        bodies += 1
        optimizer.zero_grad()
        error = (model(x) - y).pow(2)
        loss = (error * weight).sum() / weight.sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
    moments = [value for entry in optimizer.state.values() for value in entry.values()]
    rate = torch.tensor([optimizer.param_groups[0]["lr"], float(scheduler.last_epoch)])
    state = [*model.parameters(), *model.buffers(), *ema.parameters(), *ema.buffers(), *moments, rate]
    return [t.detach().clone() for t in state] + [torch.get_rng_state()], guard, bodies


def test_watched_loop_whose_step_37_fails(tmp_path: Path) -> None:
    """Located within that step; the run goes on; the weights equal those of a run that never saw that batch."""
    bad, guard, bodies = train_plain_loop(loader(bad=37, drop=None), tmp_path / "bad")
    assert (guard.counters.applied, guard.counters.skipped) == (59, 1)
    assert bodies == 60  # the batch was handed out once more in a child only
    incident = json.loads((tmp_path / "bad" / "incidents" / "0001" / "incident.json").read_text())
    assert incident["step"] == 37 and incident["reproduced"] is True
    assert incident["birth"]["line"] == line_of("loss = (error * weight).sum() / weight.sum()")
    assert incident["findings"][0]["cause"] == "EMPTY_REDUCTION"
    never, _, _ = train_plain_loop(loader(bad=37, drop=37), tmp_path / "never")
    assert all(torch.equal(a, b) for a, b in zip(bad, never, strict=True))


def test_watched_loop_with_scaler_and_accumulation(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    guard = Guard(model, optimizer, scaler=scaler, run_dir=tmp_path, quiet=True)
    data = images(24)
    data[13][0][5] = math.nan
    for i, (x, y) in enumerate(guard.watch(data)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y) / 4
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert (guard.counters.applied, guard.counters.skipped) == (5, 1)
    assert scaler.get_scale() == 256.0 and guard.bad_state() == []
    incident = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
    assert incident["findings"][0]["cause"] == "DATA_NONFINITE"


def test_a_bad_update_is_located_in_the_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).half()
    guard = Guard(net, torch.optim.Adam(net.parameters(), 1e-3), run_dir=tmp_path, policy="skip", quiet=True)
    x, y = torch.randn(32, 8).half() * 0.01, torch.randn(32, 1).half() * 0.01
    result = guard.step(lambda: F.mse_loss(net(x).float(), y.float()), batch=(x, y))
    assert result.incident is not None and result.incident.phase == "optimizer"
    assert result.incident.birth is not None and "div" in result.incident.birth.op
    assert result.incident.findings[0].cause in ("PURE_LOWP_OPTIMIZER", "EPS_UNDERFLOW")
    assert guard.bad_state() == []


def test_a_stop_in_a_watched_loop_is_located_first(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    guard = Guard(net, optimizer, policy="stop", run_dir=tmp_path, quiet=True)
    with pytest.raises(RunStopped) as stopped:
        for x in guard.watch([torch.ones(8, 4)] * 3):
            optimizer.zero_grad()
            net(x).sub(net(x)).sqrt().sum().backward()
            optimizer.step()
    incident = json.loads((tmp_path / "incidents" / "0001" / "incident.json").read_text())
    assert incident["action"] == "stop"
    assert incident["birth"]["line"] == line_of("net(x).sub(net(x)).sqrt().sum().backward()")
    assert incident["findings"][0]["cause"] == "SQRT_POW_GRAD_AT_ZERO"
    assert stopped.value.checkpoint is not None


def test_a_streak_is_one_incident(tmp_path: Path) -> None:
    """Only the first of equal failures in a row is followed and listed; all of them are counted."""
    net = nn.Linear(4, 1)
    guard = Guard(
        net,
        torch.optim.SGD(net.parameters(), 0.1),
        policy=Policy(stop_after=50),
        run_dir=tmp_path,
        quiet=True,
    )
    calls = 0

    def bad() -> Tensor:
        nonlocal calls
        calls += 1
        return net(torch.ones(2, 4)).mean().log() * math.nan

    for _ in range(6):
        guard.step(bad)
    assert guard.counters.skipped == 6
    assert calls == 7
    assert len(list((tmp_path / "incidents").iterdir())) == 1
    guard.close()
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["times"] for line in lines if line.get("incident") == "0001"] == [1, 2, 3, 4, 5, 6]


def test_a_replay_that_raises_does_not_end_the_training(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    guard = Guard(net, torch.optim.SGD(net.parameters(), 0.1), run_dir=tmp_path, quiet=True)
    calls = 0

    def fragile() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("the data server is gone")
        return net(torch.full((2, 4), math.nan)).mean()

    result = guard.step(fragile)
    assert result.applied is False and result.incident is not None and not result.incident.reproduced
    assert guard.step(lambda: net(torch.ones(2, 4)).mean()).applied
    guard.close()
    assert "the data server is gone" in (tmp_path / "run.jsonl").read_text()


def test_a_loop_that_is_left_after_a_refused_step_files_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)
    for batch in guard.watch([torch.ones(4, 2), torch.full((4, 2), float("nan")), torch.ones(4, 2)]):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if not torch.isfinite(loss):
            break
    filed = json.loads((tmp_path / "incidents/0001/incident.json").read_text())
    assert (filed["step"], filed["action"]) == (1, "skip")
    for batch in guard.watch([torch.ones(4, 2)] * 2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    assert (guard.counters.applied, guard.counters.skipped) == (3, 1)
    assert len(list((tmp_path / "incidents").iterdir())) == 1
