"""What happens between the steps: saves that are due at a bad moment, bodies that train nothing, lazy modules."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.checkpoint import verify
from stayfinite.recover import CheckpointError


def small(run_dir: Path, **options: object) -> tuple[nn.Linear, torch.optim.Optimizer, Guard]:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    return model, optimizer, Guard(model, optimizer, run_dir=run_dir, quiet=True, **options)


def test_a_save_that_is_due_while_state_is_poisoned_comes_after_the_repair(tmp_path: Path) -> None:
    model, optimizer, guard = small(tmp_path, save_every=5, snapshot_every=5, check_every=5)
    for i in range(14):
        if i == 10:
            optimizer.state[model.weight]["momentum_buffer"][0, 0] = math.nan
        assert guard.step(lambda: model(torch.randn(4, 2)).square().mean()).applied
    assert guard.bad_state() == []
    guard.close()
    assert '"event":"repair","step":10' in (tmp_path / "run.jsonl").read_text()
    for path in sorted((tmp_path / "snapshots").iterdir()):
        assert verify(path).healthy


def test_a_periodic_save_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("in the way")
    model, _, guard = small(tmp_path, save_every=5)
    with pytest.warns(RuntimeWarning, match="could not write the checkpoint"):
        results = [guard.step(lambda: model(torch.randn(4, 2)).square().mean()) for _ in range(12)]
    assert all(result.applied for result in results)


def test_a_body_that_skips_its_bad_batch_leaves_no_nan_in_batch_norm(tmp_path: Path) -> None:
    """`if not loss.isfinite(): continue` comes too late for the running statistics."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)
    for n, x in enumerate(guard.watch([torch.randn(4, 2) for _ in range(4)])):
        optimizer.zero_grad()
        loss = model(x * (math.nan if n == 1 else 1.0)).square().mean()
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
    assert guard.bad_state() == [] and guard.counters.applied == 3


def test_no_checkpoint_in_the_middle_of_an_accumulation(tmp_path: Path) -> None:
    model, _, guard = small(tmp_path, accumulate=2)

    def loss() -> Tensor:
        return model(torch.randn(4, 2)).square().mean()

    guard.step(loss)
    with pytest.raises(CheckpointError, match="wait for their update"):
        guard.save(tmp_path / "a.pt")
    guard.step(loss)
    assert guard.save(tmp_path / "a.pt").is_file()


def test_lazy_modules_need_a_forward_pass_first(tmp_path: Path) -> None:
    model = nn.LazyLinear(3)
    with pytest.raises(ValueError, match="one forward pass"):
        Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=tmp_path)


def test_the_epoch_is_known_after_a_restore(tmp_path: Path) -> None:
    model, optimizer, guard = small(tmp_path)
    for _ in range(2):
        for x in guard.watch([torch.randn(4, 2)] * 3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    guard.save(tmp_path / "a.pt")
    _, _, again = small(tmp_path / "again")
    again.restore(tmp_path / "a.pt")
    assert (guard.epoch, again.epoch) == (2, 2)


def test_a_loop_keeps_its_record_when_nobody_holds_the_guard(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in Guard(model, optimizer, run_dir=tmp_path, quiet=True).watch([torch.ones(4, 2)] * 3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    assert (tmp_path / "run.jsonl").read_text().count('"grad_norm"') == 3
