"""One rank of a DDP training that saves itself now and then, and goes on from its newest checkpoint when started again.

`python killed_ranks.py RANK RANKS FOLDER STORE`; prints every step, and at the end what its weights are.
"""

from __future__ import annotations

import hashlib
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stayfinite import Guard
from stayfinite.recover import CheckpointError

STEPS, TIMEOUT = 40, 30.0


def resume(guard: Guard, folder: Path) -> None:
    """From the newest checkpoint that can be read; one that cannot is never there, says the test."""
    for path in sorted((folder / "run" / "snapshots").glob("step-*.pt"), reverse=True):
        try:
            guard.restore(path)
        except CheckpointError as error:
            print(f"unreadable {error}", flush=True)
            continue
        print(f"resumed {guard.step_count}", flush=True)
        return


def main(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 3))
    # DDP orders its buckets anew after the first backward pass of a process, unless it looks for unused parameters.
    # With more than two ranks a sum in another order has other last bits, guarded or not.
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    guard = Guard(model, optimizer, run_dir=folder / "run", quiet=True, save_every=4, keep=2, check_every=5)
    torch.manual_seed(100 + rank)
    resume(guard, folder)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    while guard.step_count < STEPS:
        print(f"step {guard.step_count}", flush=True)
        draw = torch.Generator().manual_seed(1000 * guard.step_count + rank)
        guard.step(loss, torch.randn(8, 6, generator=draw))
        time.sleep(0.01)
    guard.close()
    content = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(f"weights {hashlib.sha256(content).hexdigest()}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, count, place, store = sys.argv[1:]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(number),
        world_size=int(count),
        timeout=timedelta(seconds=TIMEOUT),
    )
    main(int(number), Path(place))
    dist.destroy_process_group()
