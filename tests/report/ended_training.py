"""A small guarded training: ended_training.py RUN_DIR STEPS. Says "training" after 10 steps, then makes STEPS more."""

from __future__ import annotations

import sys
import time

import torch

from stayfinite import Guard


def main(run_dir: str, steps: int) -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), 1e-3), run_dir=run_dir, quiet=True)
    for step in range(10 + steps):
        guard.step(lambda: model(torch.randn(8, 4)).square().mean())
        if step == 9:
            print("training", flush=True)
        time.sleep(0.02 if step > 9 else 0.0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
