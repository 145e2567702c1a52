"""One rank that trains, saves and restores under guard, with replicas or shards. Prints a JSON line a task.

`python rank_tasks.py RANK RANKS FOLDER TASK...`; a task names the parallelism and what is done.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
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
from stayfinite.recover import CheckpointError, save_meeting
from stayfinite.recover import ranks as ranks_module

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


def own_part(parameter: Tensor) -> Tensor:
    part: Tensor = getattr(parameter, "to_local", lambda: parameter)()
    return part.view(-1)


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of whole weights and moments, however they are spread."""
    tensors = [*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())]
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in whole)).hexdigest()


def count_collectives(task: str, model: Any, optimizer: Any, guard: Guard) -> dict[str, Any]:
    """(collectives, bytes that this rank gives to the guard's own) of one step, plain and guarded."""
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    def plain() -> None:
        optimizer.zero_grad()
        loss(x).backward()
        if "clip" in task:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def watched() -> None:
        for _ in guard.watch([x]):
            plain()

    given: list[int] = []
    real = guard.ranks.gather

    def gather(row: Tensor) -> Tensor:
        given.append(row.numel() * row.element_size())
        return real(row)

    guard.ranks.gather = gather  # type: ignore[method-assign]
    counts = {}
    for name, step in (("plain", plain), ("step", lambda: guard.step(loss, x)), ("watch", watched)):
        while guard.step_count < 9:  # the first update has a copy, and looks are at 1, 2, 4 and 8
            guard.step(loss, x)
        given.clear()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            step()
        collectives = [event for event in seen.key_averages() if event.key.startswith("c10d::")]
        counts[name] = [sum(event.count for event in collectives), list(given)]
    return counts


def apart(rank: int, folder: Path) -> dict[str, Any]:
    """Ranks that average nothing, rank 0 late, no folder asked for; in step 3 the gradient of rank 1 is bad."""
    ranks_module._ANSWER_SECONDS = 0.5
    if rank == 0:
        time.sleep(2.0)
    os.chdir(folder)
    model, optimizer = build("plain", 2)
    guard = Guard(model, optimizer, quiet=True, clip_norm=1.0)

    def loss(x: Tensor) -> Tensor:
        made = model(x)
        return F.cross_entropy(made, x[:, :3].argmax(1)) + (made.sum() * x[0, 0]).abs().sqrt()

    for step in range(6):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank))
        x[0, 0] = 0.0 if rank == 1 and step == 3 else 1.0
        guard.step(loss, x)
    lines = [json.loads(line) for line in (guard.run_dir / "run.jsonl").read_text().splitlines()]
    guard.close()
    (found,) = sorted((folder / guard.run_dir).glob("incidents/*/incident.json"))
    return {
        "said": [line["what"] for line in lines if line.get("action") == "skip"],
        "incident": json.loads(found.read_text(encoding="utf-8")),
        "folders": sorted(path.name for path in (folder / "stayfinite-runs").iterdir()),
    }


def do(task: str, rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    if task == "apart":
        return apart(rank, folder)
    model, optimizer = build(task, ranks)
    guard = Guard(
        model,
        optimizer,
        run_dir=folder / f"run {task} {ranks}",
        quiet=True,
        check_every=0 if "count" in task else 2,
    )
    name = "shards" if "shard" in task else "replicas.pt"
    report: dict[str, Any] = {}

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    def train(first: int, last: int) -> None:
        for step in range(first, last):
            guard.step(loss, torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank)))

    if "count" in task:
        return count_collectives(task, model, optimizer, guard)
    if "drift" in task:
        train(0, 5)
        if rank == 1:
            with torch.no_grad():
                own_part(next(model.parameters()))[0] += 1e-7
        train(5, 10)
        found = sorted((folder / f"run {task} {ranks}" / "incidents").glob("*/incident.json"))
        report["incidents"] = [json.loads(file.read_text(encoding="utf-8")) for file in found]
        return report
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
                own_part(next(model.parameters()))[0] = float("nan") if rank == 1 else 0.0
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
    save_meeting._OTHERS_SECONDS = 3.0
    own_rank, count, scratch = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    if count > 1:
        store = scratch / f"store-{count}"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=own_rank, world_size=count)
    for task in sys.argv[4:]:
        print(json.dumps(do(task, own_rank, count, scratch)), flush=True)
    if count > 1:
        dist.destroy_process_group()
