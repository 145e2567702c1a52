"""One rank of a tensor-parallel training, plain or under guard. Prints a JSON line a task: what it saw.

`python tensor_parallel.py RANK FOLDER TASK...`; a task names the fault, which is on rank 1, and how the loop is run.
"""

from __future__ import annotations

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
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from stayfinite import Guard

STEPS, BAD_STEP = 8, 6


class Block(nn.Module):
    """One half of `up` and `down` is on each rank; `norm` and `out` are whole on both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(6), nn.Linear(6, 16)
        self.down, self.out = nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(self.norm(x)))
        mixed: Tensor = self.out(x + self.down(hidden))
        return mixed


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def batch(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))  # the same on both ranks
    return x, x[:, :3].argmax(1)


def train(task: str, rank: int, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model: Any = Block()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    seen: dict[int, str] = {}
    norms: list[float] = []

    def digest() -> str:
        moments = (v for state in optimizer.state.values() for v in state.values())
        parts = [whole(t).detach().numpy().tobytes() for t in (*model.parameters(), *moments)]
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def given(step: int) -> tuple[Tensor, Tensor]:
        x, y = batch(step)
        if step == BAD_STEP and rank == 1 and "input" in task:
            x[0, 0] = float("nan")
        return x, y

    def spoil(step: int) -> None:
        if step != BAD_STEP or rank != 1:
            return
        with torch.no_grad():
            if "weight" in task:
                model.up.weight.to_local().view(-1)[0] = float("nan")
            if "moment" in task:
                optimizer.state[model.down.weight]["exp_avg"].to_local().view(-1)[0] = float("nan")

    if task == "plain":
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            norms.append(float(torch.stack([whole(p.grad).norm() for p in model.parameters()]).norm()))
            optimizer.step()
        return {"weights": digest(), "norms": norms}

    guard = Guard(model, optimizer, run_dir=folder / task, quiet=True, check_every=2)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        seen[guard.step_count] = digest()  # a refused watched body is repeated before the run goes back
        return F.cross_entropy(model(x), y)

    if "watch" in task:
        for step, (x, y) in enumerate(guard.watch([given(step) for step in range(STEPS)])):
            spoil(step)
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
    else:
        for step in range(STEPS):
            spoil(step)
            guard.step(loss, *given(step))
    guard.close()
    record = (guard.run_dir / "run.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in record.splitlines()]
    incidents = sorted((folder / task / "incidents").glob("*/incident.json"))
    return {
        "weights": digest(),
        "seen": seen,
        "norms": [line["grad_norm"] for line in lines if "event" not in line],
        "actions": [line["action"] for line in lines if "event" not in line],
        "events": [line["event"] for line in lines if "event" in line and "what" in line],
        "incidents": [json.loads(file.read_text(encoding="utf-8")) for file in incidents],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    own_rank, scratch = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{scratch / 'store'}",
        rank=own_rank,
        world_size=2,
        timeout=timedelta(seconds=90),
    )
    for given in sys.argv[3:]:
        print(json.dumps(train(given, own_rank, scratch)), flush=True)
    dist.barrier()
    dist.destroy_process_group()
