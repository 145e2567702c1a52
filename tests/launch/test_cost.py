"""What `run` and `Guard` add to a healthy step, counted: op calls and transfers to the host, not seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json
import sys
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ops = transfers = 0

class Ops(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        global ops, transfers
        ops += 1
        transfers += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))

class Calls(TorchFunctionMode):  # tolist and numpy read the memory of the host without an op
    def __torch_function__(self, func, types, args=(), kwargs=None):
        global transfers
        transfers += getattr(func, "__name__", "") in ("tolist", "numpy", "cpu")
        return func(*args, **(kwargs or {}))

def train(style):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in style)
    data = torch.randn(240, 16)  # 3 styles of 30 steps: the look at all state every 100 is not reached
    batches = torch.utils.data.DataLoader(data, batch_size=8) if "loader" in style else data.split(8)
    if "guard" in style:
        from stayfinite import Guard
        batches = Guard(net, opt, scaler=scaler, run_dir="run", quiet=True).watch(batches)
    counts = []
    with Calls(), Ops():
        for x in batches:
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            if "checks" in style:
                torch.isfinite(loss)
            scaler.scale(loss).backward()
            if "clip" in style:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            counts.append((ops, transfers))
    return [[b - a for a, b in zip(one, two)] for one, two in zip(counts, counts[1:])]

print(json.dumps({style: train(style) for style in sys.argv[1:]}))
"""
STYLES = ["loader, clip", "plain, checks", "loader, scaler, clip"]


Counts = dict[str, list[tuple[int, int]]]


def counted(folder: Path, styles: list[str], *launcher: str) -> Counts:
    """(op calls, transfers) of every step but the first, by style of training."""
    script = folder / "toy.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *launcher, str(script), *styles],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: Counts = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    return counted(tmp_path_factory.mktemp("plain"), [*STYLES, "plain, clip", "plain, clip, guard"])


def too_much(added: list[tuple[int, int]], alone: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(step, op calls, transfers) where more than 20 op calls or one transfer were added."""
    more = [(step, a[0] - b[0], a[1] - b[1]) for step, (a, b) in enumerate(zip(added, alone, strict=True), 1)]
    return [one for one in more if one[1] > 20 or one[2] > 1]


def test_run_adds_one_transfer_and_twenty_op_calls_a_step(tmp_path: Path, plain: Counts) -> None:
    run = counted(tmp_path, STYLES, "-m", "stayfinite", "run")
    assert {style: too_much(run[style], plain[style]) for style in STYLES} == {style: [] for style in STYLES}


def test_a_guard_adds_no_more(plain: Counts) -> None:
    assert too_much(plain["plain, clip, guard"], plain["plain, clip"]) == []
