"""One rank of distributed trainings under guard, on two gloo processes. Prints a JSON line a training: what it saw.

`python two_ranks.py RANK FOLDER SCENARIO...`; a scenario names the fault, and whether the loop is watched.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stayfinite import Guard, Policy, RunStopped

STEPS, BAD_STEP, BAD_RANK, LATE = 16, 9, 1, 60


def train(rank: int, folder: Path, scenario: str) -> dict[str, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = DistributedDataParallel(network)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if "zero" in scenario:  # each rank keeps the moments of its share of the parameters
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    if "late" in scenario and rank == BAD_RANK:
        time.sleep(LATE)
    guard = Guard(
        model,
        optimizer,
        clip_norm=1.0,
        run_dir=folder / "run",
        quiet=True,
        check_every=3,
        snapshot_every=6,
        policy=Policy(bad_component="leave-out") if "component" in scenario else "default",
    )
    data = torch.Generator().manual_seed(100 + rank)

    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(8, 4, generator=data)
        return x, x[:, :3].argmax(1)

    def losses(x: Tensor, y: Tensor) -> Tensor | dict[str, Tensor]:
        """One rank may have a component that the other does not know."""
        value = loss(x, y)
        if "component" not in scenario:
            return value
        extra = value * (math.nan if bad_now() else 0.1)
        if "foreign" in scenario:
            return {"ce": value, "extra": extra} if rank == BAD_RANK else {"ce": value}
        return {"ce": value, "extra": extra}

    def backward(x: Tensor, y: Tensor) -> None:
        """One rank may observe more than the other, and see more losses in a step."""
        if "uneven" in scenario and rank == BAD_RANK and guard.step_count % 2:
            guard.observe(features=x, more=x[:, 0])
            with model.no_sync():
                (0.5 * loss(x, y)).backward()
            (0.5 * loss(x, y)).backward()
        else:
            loss(x, y).backward()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        value = F.cross_entropy(model(x), y)
        return value * float("nan") if bad_now() and "loss" in scenario else value

    def bad_now() -> bool:
        return guard.step_count == BAD_STEP and rank == BAD_RANK

    def spoil(x: Tensor) -> Tensor:
        if bad_now() and "input" in scenario:
            x = x.clone()
            x[2, 1] = float("nan")
        if bad_now() and "moment" in scenario:
            with torch.no_grad():
                kept = optimizer.optim.state if "zero" in scenario else optimizer.state
                next(iter(kept.values()))["momentum_buffer"].view(-1)[0] = float("nan")
        return x

    stopped = None
    try:
        if "watch" in scenario:
            for x, y in guard.watch([batch() for _ in range(STEPS)]):
                optimizer.zero_grad()
                backward(spoil(x), y)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        else:
            for _ in range(STEPS):
                x, y = batch()
                x = spoil(x)
                guard.step(lambda x=x, y=y: losses(x, y), batch=x)
    except RunStopped as error:
        stopped = str(error)
    guard.close()
    lines = [
        json.loads(line) for line in (guard.run_dir / "run.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return {
        "actions": [line["action"] for line in lines if "event" not in line],
        "said": [line["what"] for line in lines if "what" in line and "event" not in line],
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
        "moments": [s["momentum_buffer"].double().sum().item() for s in optimizer.state.values()],
        "bad_state": [summary.name for _, summary in guard.bad_state()],
        "losses": [line["loss"] for line in lines if "event" not in line],
        "stopped": stopped,
        "left_out": guard.counters.left_out,
        "events": [line["event"] for line in lines if "event" in line],
        "told": [line["what"] for line in lines if line.get("event") == "leave-out"],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    for scenario in sys.argv[3:]:
        print(json.dumps(train(rank, folder / scenario, scenario)), flush=True)
    dist.destroy_process_group()
