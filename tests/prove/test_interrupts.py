"""Ctrl-C at any moment of a proof: the training is bit for bit what it was, and can go on."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.sandbox.fork import obstacle

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))


def entropy(model: nn.Module, batch: Tensor) -> Tensor:
    p = torch.softmax(model(batch), -1)
    return -(p * torch.log(p)).sum(-1).mean()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
    found = [*model.parameters(), *model.buffers(), *moments, torch.get_rng_state()]
    return [tensor.detach().clone() for tensor in found]


def interrupted(folder: Path, seconds: float) -> tuple[bool, bool]:
    """One failing step with a Ctrl-C so many seconds later: (was it raised, is everything as before)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard = Guard(model, optimizer, run_dir=folder, quiet=True)
    for _ in range(3):
        guard.step(entropy, model, torch.randn(16, 4))
    bad = torch.randn(16, 4)
    with torch.no_grad():
        model[2].weight.mul_(1e4)
    before, drawn = everything(model, optimizer), random.getstate()
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    raised = False
    timer.start()
    try:
        guard.step(entropy, model, bad)
        time.sleep(0.01)
    except KeyboardInterrupt:
        raised = True
    finally:
        try:
            timer.cancel()
            timer.join()
            time.sleep(0.05)
        except KeyboardInterrupt:
            raised = True
    now = everything(model, optimizer)
    same = len(now) == len(before) and all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    with torch.no_grad():
        model[2].weight.div_(1e4)
    assert guard.step(entropy, model, torch.randn(16, 4)).applied
    return raised, same and drawn == random.getstate()


@pytest.mark.parametrize("trials", [4, pytest.param(40, marks=pytest.mark.long)])
def test_the_state_after_ctrl_c_at_random_moments(
    trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAYFINITE_PROVE", raising=False)
    moments = random.Random(5)
    done = [interrupted(tmp_path / str(n), moments.uniform(0.05, 1.2)) for n in range(trials)]
    assert [same for _, same in done] == [True] * trials
    assert any(raised for raised, _ in done), "no interrupt came while something ran"
