"""Children that train and save without a pause, to be killed. torch is imported once; every child is a fork.

For each line of input (a folder) it forks a child that goes on from the newest checkpoint of the folder, and prints
the child's process id; the child prints "saving" when it begins.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from stayfinite import Guard
from stayfinite.recover.checkpoint import numbered


def build(folder: Path, **options: int) -> Guard:
    """About 3 MB of parameters and momentum, saved before every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
    return Guard(model, optimizer, run_dir=folder, quiet=True, snapshot_every=0, **options)


def save_for_ever(folder: Path) -> None:
    guard = build(folder, save_every=1, keep=2)
    model = guard.state.models[""]
    checkpoints = numbered(folder / "snapshots")
    if checkpoints:
        guard.restore(checkpoints[-1])
    print("saving", flush=True)
    while True:
        guard.step(lambda: model(torch.randn(2, 600)).square().mean())


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as warm_up:  # torch imports much when the first optimizer is made
        build(Path(warm_up)).close()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            save_for_ever(Path(line.strip()))
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)
