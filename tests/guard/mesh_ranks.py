"""One rank of four: a training on a mesh of 2 x 2 (`fully_shard` over tensor parallelism). A JSON line a task.

`python mesh_ranks.py RANK FOLDER TASK...`; a task says how it is guarded, and its fault.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from guard.rank_tasks import count_collectives
from stayfinite import Guard

STEPS, BAD_STEP, BAD_RANKS = 6, 4, (2, 3)


class Block(nn.Module):
    """`up` and `down` are cut by tensor parallelism, and all but `scale` is sharded: `scale` is whole on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.out = nn.Linear(6, 16), nn.Linear(16, 6), nn.Linear(6, 3)
        self.scale = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.out(x + self.down(F.gelu(self.up(self.scale(x)))))
        return mixed


def batch(step: int, replica: int) -> tuple[Tensor, Tensor]:
    """The two ranks of a replica compute on the same one."""
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + replica))
    return x, x[:, :3].argmax(1)


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def norm_in_double(model: nn.Module, step: int) -> float:
    """Of the mean gradient of both batches, by one process that holds all of the model."""
    plain = Block().double()
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), model.parameters(), strict=True):
            mine.copy_(whole(theirs))
    for replica in (0, 1):
        x, y = batch(step, replica)
        (F.cross_entropy(plain(x.double()), y) / 2).backward()
    gradients = [p.grad for p in plain.parameters() if p.grad is not None]
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


def build() -> tuple[Any, torch.optim.Optimizer, int]:
    torch.manual_seed(0)
    model: Any = Block()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "cut"))
    parallelize_module(model, mesh["cut"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for layer in (model.up, model.down, model.out, model):
        fully_shard(layer, mesh=mesh["replica"])
    return model, torch.optim.AdamW(model.parameters(), 1e-2), mesh["replica"].get_local_rank()


def train(task: str, folder: Path) -> dict[str, Any]:
    model, optimizer, replica = build()
    expected: list[float] = []

    def given(step: int) -> tuple[Tensor, Tensor]:
        x, y = copy.deepcopy(batch(step, replica))
        if "input" in task and step == BAD_STEP and replica == 1:
            x[0, 0] = float("nan")
        return x, y

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    def update(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()

    def digest() -> str:
        moments = (v for state in optimizer.state.values() for v in state.values())
        parts = [whole(t).detach().numpy().tobytes() for t in (*model.parameters(), *moments)]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    if task == "shard plain":
        for step in range(STEPS):
            expected.append(norm_in_double(model, step))
            update(*given(step))
        return {"weights": digest(), "norms": expected}
    guard = Guard(
        model, optimizer, run_dir=folder / task, quiet=True, check_every=0 if "count" in task else 2
    )
    if "count" in task:
        return count_collectives(task, model, optimizer, guard)
    if "watch" in task:
        for x, y in guard.watch([given(step) for step in range(STEPS)]):
            update(x, y)
    else:
        for step in range(STEPS):
            guard.step(loss, *given(step))
    guard.close()
    dist.barrier()  # rank 0 has written the record
    lines = [json.loads(line) for line in (folder / task / "run.jsonl").read_text().splitlines()]
    files = sorted((folder / task / "incidents").glob("*/incident.json"))
    return {
        "weights": digest(),
        "norms": [line["grad_norm"] for line in lines if "event" not in line],
        "actions": [line["action"] for line in lines if "event" not in line],
        "skipped": guard.counters.skipped,
        "incidents": [json.loads(file.read_text()) for file in files],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    own_rank, scratch = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{scratch / 'store'}",
        rank=own_rank,
        world_size=4,
        timeout=timedelta(seconds=90),
    )
    for given_task in sys.argv[3:]:
        print(json.dumps(train(given_task, scratch)), flush=True)
    dist.barrier()
    dist.destroy_process_group()
