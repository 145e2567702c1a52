"""One rank of trainings with sharded state or uneven inputs. Prints a JSON line a training: what it ended with.

`python sharded_ranks.py RANK FOLDER TRAINING...`; a training names the parallelism, how it is guarded, and its fault.
"""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from stayfinite import Guard
from stayfinite.recover import CheckpointError

EPOCHS, STEPS, BAD_STEP, BAD_RANK, LATE_STEP = 2, 8, 5, 1, 9


class Mixed(nn.Module):
    """Some layers are sharded, one is not: its parameters are plain tensors, alike on every rank."""

    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        if sharded:
            mesh = init_device_mesh("cpu", (2,))
            for layer in (self.first, self.last):
                fully_shard(layer, mesh=mesh)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(F.relu(self.norm(self.first(x))))
        return hidden


def batches(rank: int, epoch: int, training: str) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1000 * epoch + rank)
    made = []
    for step in range(STEPS + (3 * rank if "join" in training else 0)):
        x = torch.randn(8, 6, generator=draw)
        y = x[:, :3].argmax(1)
        bad = (BAD_STEP,) if "nan" in training else (LATE_STEP,) if "late" in training else ()
        if step in bad and rank == BAD_RANK and epoch == 0:
            x[2, 1] = float("nan")
        made.append((x, y))
    return made


def train(rank: int, folder: Path, training: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model: Any = Mixed("shard" in training)
    model = model if "shard" in training else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    guard = None
    if "plain" not in training:
        guard = Guard(model, optimizer, run_dir=folder, quiet=True, check_every=3, snapshot_every=4)

    def step(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    for epoch in range(EPOCHS):
        own = batches(rank, epoch, training)
        with model.join() if "join" in training else nullcontext():
            for x, y in guard.watch(own) if guard is not None and "watch" in training else own:
                if guard is not None and "watch" not in training:
                    guard.step(step, x, y)
                    continue
                optimizer.zero_grad()
                step(x, y).backward()
                optimizer.step()
    report: dict[str, Any] = {"skipped": 0, "incident": None}
    if guard is not None:
        try:
            guard.save(folder / "whole.pt")
        except CheckpointError as error:
            report["not_saved"] = str(error)
        guard.close()
        found = guard.run_dir / "incidents" / "0001" / "incident.json"
        report["skipped"] = guard.counters.skipped
        report["incident"] = json.loads(found.read_text(encoding="utf-8")) if found.exists() else None
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in whole)).hexdigest()
    return report | {"weights": digest, "finite": all(bool(t.isfinite().all()) for t in whole)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    own_rank, scratch = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{scratch / 'store'}", rank=own_rank, world_size=2)
    for name in sys.argv[3:]:
        print(json.dumps(train(own_rank, scratch / name.replace(" ", "-"), name)), flush=True)
    dist.destroy_process_group()
