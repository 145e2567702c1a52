"""One rank that trains, saves and restores under guard, with replicas or shards. Prints a JSON line a task.

`python rank_checkpoints.py RANK RANKS FOLDER TASK...`; a task names the parallelism and what is done.
"""

from __future__ import annotations

import hashlib
import json
import sys
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

STEPS, SAVED_AT = 8, 4


def build(task: str, ranks: int) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 10), nn.Dropout(0.2), nn.ReLU(), nn.Linear(10, 3))
    if "shard" in task and ranks > 1:
        mesh = init_device_mesh("cpu", (ranks,))
        for layer in (model[0], model[3]):
            fully_shard(layer, mesh=mesh)
    elif "ddp" in task and ranks > 1:
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of whole weights and moments, however they are spread."""
    tensors = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in whole)).hexdigest()


def do(task: str, rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    model, optimizer = build(task, ranks)
    guard = Guard(model, optimizer, run_dir=folder / f"run {task} {ranks}", quiet=True, check_every=2)
    name = "shards" if "shard" in task else "replicas.pt"
    report: dict[str, Any] = {}

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            guard.step(loss, torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank)))

    if "resume" in task:
        guard.restore(folder / name)
        report["restored"] = digest(model, optimizer)
        train(guard.step_count, STEPS)
    else:
        torch.manual_seed(rank)  # dropout of its own on every rank
        train(0, SAVED_AT)
        if "alone" in task:
            if rank == 0:
                guard.save(folder / "alone.pt")
        elif "own" in task:
            guard.save(folder / f"own-{rank}.pt")
        elif "bad" in task:
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] = float("nan") if rank == 1 else 0.0
            try:
                guard.save(folder / "bad.pt")
            except CheckpointError as error:
                report["refused"] = str(error)
            return report
        else:
            guard.save(folder / name)
            guard.save(folder / name)  # over the first
            report["saved"] = digest(model, optimizer)
        train(SAVED_AT, STEPS)
    report["weights"] = digest(model, optimizer)
    guard.close()
    return report


if __name__ == "__main__":
    torch.set_num_threads(1)
    own_rank, count, scratch = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    if count > 1:
        store = scratch / f"store-{count}"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=own_rank, world_size=count)
    for task in sys.argv[4:]:
        print(json.dumps(do(task, own_rank, count, scratch)), flush=True)
    if count > 1:
        dist.destroy_process_group()
