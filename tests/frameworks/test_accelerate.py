"""Guard.from_accelerator, and loops of Accelerate with accumulation, schedules and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from failing import Samples, line_of, model

from stayfinite import Guard
from stayfinite.recover import CheckpointError


def _prepared(case: str, accumulate: int = 1):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    net = model(case)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loader = torch.utils.data.DataLoader(Samples(case), batch_size=4)
    return accelerator, *accelerator.prepare(net, optimizer, schedule, loader)


def _train(case: str, folder: Path | None, accumulate: int = 1):
    accelerator, net, optimizer, schedule, loader = _prepared(case, accumulate)
    guard = None
    if folder is not None:
        guard = Guard.from_accelerator(accelerator, run_dir=folder, policy="skip", quiet=True)
    for batch in guard.watch(loader) if guard is not None else loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(**batch)["loss"])
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    if guard is not None:
        guard.close()
    return net, schedule, guard


@pytest.mark.parametrize("accumulate", [1, 3])
def test_healthy_is_bit_identical(accumulate: int, tmp_path: Path) -> None:
    plain, schedule, _ = _train("healthy", None, accumulate)
    watched, held, guard = _train("healthy", tmp_path, accumulate)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert schedule.state_dict() == held.state_dict()
    assert guard is not None and guard.counters.applied == 12 // accumulate
    assert not list(tmp_path.glob("incidents/*"))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_located_and_the_schedule_is_held(accumulate: int, tmp_path: Path) -> None:
    net, schedule, guard = _train("masked_row", tmp_path, accumulate)
    assert guard is not None and guard.counters.skipped == 1
    assert guard.counters.applied == 12 // accumulate - 1
    assert schedule.scheduler.last_epoch == 12 // accumulate - 1
    assert all(torch.isfinite(value).all() for value in net.state_dict().values())
    report = (tmp_path / "incidents" / "0001" / "incident.json").read_text()
    assert f'"line": {line_of("masked_row")}' in report


def test_a_poisoned_state_is_not_saved(tmp_path: Path) -> None:
    accelerator, net, *_ = _prepared("healthy")
    guard = Guard.from_accelerator(accelerator, run_dir=tmp_path / "run", quiet=True, snapshot_every=0)
    accelerator.save_state(tmp_path / "good")
    torch.nn.init.constant_(net.body.bias, float("inf"))
    with pytest.raises(CheckpointError, match=r"bad was not written: body.bias holds NaN or Inf"):
        accelerator.save_state(tmp_path / "bad")
    assert not list((tmp_path / "bad").glob("*.safetensors"))
    guard.close()


def test_nothing_prepared() -> None:
    with pytest.raises(ValueError, match=r"nothing was prepared yet; call accelerator.prepare"):
        Guard.from_accelerator(Accelerator(cpu=True))
