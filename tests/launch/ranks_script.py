"""A small DDP training as people write it. `python ranks_script.py [WAY]` under any launcher.

WAY: `healthy`; `batch` (rank 1 gets a batch with nothing to count); `kill` (rank 1 kills itself); `lost 0`, `lost 1`
(the same batch, and this rank is killed while rank 1 repeats its step, which takes a while);
`raise` (rank 1 raises); `wait` (says that it trains, and goes on until it is stopped); `alone` (no torch.distributed).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, BAD = 12, 5
slow = [3.0, 0.0] if sys.argv[1].startswith("lost") else []
"""Seconds that a batch with nothing to count takes, the last first: it is slow when it is repeated."""


def masked(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    losses = F.cross_entropy(logits, y, reduction="none")
    if slow and not mask.any():
        time.sleep(slow.pop())
    return (losses * mask).sum() / mask.sum()  # born-here


def die_when_refused(rank: int) -> None:
    """Once the record of this rank has the refused step, somebody repeats it."""
    record = "run.jsonl" if rank == 0 else f"rank{rank}/run.jsonl"
    while not any('"skip"' in path.read_text() for path in Path("stayfinite-runs").glob(f"*/{record}")):
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def main(way: str) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if way != "alone":
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    if way != "alone":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x = torch.randn(8 * STEPS, 6, generator=torch.Generator().manual_seed(rank))
    mask = torch.ones(8 * STEPS)
    if way in ("batch", "alone", "lost") and rank == 1:
        mask[8 * BAD : 8 * (BAD + 1)] = 0
    if way == "lost" and rank == int(sys.argv[2]):
        threading.Thread(target=die_when_refused, args=(rank,), daemon=True).start()
    steps = 0
    while way == "wait" or steps < STEPS:
        for rows, counted in DataLoader(TensorDataset(x, mask), batch_size=8):
            if rank == 1 and steps == BAD and way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1 and steps == BAD and way == "raise":
                raise ValueError("rank 1 has had enough")
            optimizer.zero_grad()
            masked(model(rows), rows[:, :3].argmax(1), counted).backward()
            if way == "lost":  # as many scripts do: it is no cause of anything
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if way == "wait":
                time.sleep(0.02)
                if steps == BAD:
                    print("training", flush=True)
    whole = torch.cat([p.detach().flatten() for p in model.parameters()])
    print(f"rank {rank} ends with {whole.double().sum().item()!r}", flush=True)
    if way != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
