"""What the agreed decision costs: guarded against plain training on 2 and 4 ranks of this host (gloo, loopback).

    python bench/ranks.py                     a table: time, collectives and bytes a step

Plain and guarded steps take turns, in rounds; the ratio is the median over rounds. Collectives are counted by torch's
profiler in one step. A look at all state every `check_every` steps costs one collective of 40 bytes more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("plain", "step", "watch")


def worker(rank: int, ranks: int, folder: Path, parallel: str, width: int, rounds: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import Tensor, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from stayfinite import Guard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks)

    def training(name: str) -> tuple[Callable[[Tensor], Any], Any]:
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(64, width)]
        for _ in range(4):
            layers += [nn.ReLU(), nn.Linear(width, width)]
        model: Any = nn.Sequential(*layers, nn.Linear(width, 10))
        if parallel == "fully_shard":
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
        else:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

        def loss(x: Tensor) -> Tensor:
            return F.cross_entropy(model(x), x[:, :10].argmax(1))

        def body(x: Tensor) -> None:
            optimizer.zero_grad()
            loss(x).backward()
            optimizer.step()

        if name == "plain":
            return body, None
        guard = Guard(model, optimizer, run_dir=folder / name, quiet=True)
        if name == "step":
            return lambda x: guard.step(loss, x), guard
        loop = iter(guard.watch(_endless()))

        def watched(x: Tensor) -> None:
            next(loop)
            body(x)

        return watched, guard

    made = {name: training(name) for name in WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank))
    for name in WAYS:
        for _ in range(20):
            made[name][0](batch)
    for _ in range(rounds):
        for name in WAYS:
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(10):
                made[name][0](batch)
            seconds[name].append((time.perf_counter() - begun) / 10)
    counted: dict[str, Any] = {}
    for name in WAYS:
        step, guard = made[name]
        given: list[int] = []
        if guard is not None:
            real = guard.ranks.gather
            guard.ranks.gather = lambda row, real=real, given=given: (
                given.append(row.numel() * row.element_size()) or real(row)
            )
        while guard is not None and guard.step_count % 100 in (99, 0, 1, 2):
            step(batch)
        given.clear()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            step(batch)
        events = [event for event in seen.key_averages() if event.key.startswith("c10d::")]
        counted[name] = [sum(event.count for event in events), sum(given)]
    if rank == 0:
        print(json.dumps({"seconds": seconds, "counted": counted}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _endless() -> Any:
    while True:
        yield None


def measure(ranks: int, parallel: str, width: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--worker",
                    str(rank),
                    str(ranks),
                    folder,
                    parallel,
                    str(width),
                    str(rounds),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        ended = [process.communicate(timeout=1200) for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(ended[0][1][-2000:])
    found: dict[str, Any] = json.loads(ended[0][0].splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    asked = parser.parse_args()
    print(
        "| ranks | parallel | way | ms a step | time / plain | collectives a step | bytes a rank gives to the guard's |"
    )
    print("|---|---|---|---|---|---|---|")
    for ranks in asked.ranks:
        for parallel in ("DDP", "fully_shard"):
            found = measure(ranks, parallel, asked.width, asked.rounds)
            plain = found["seconds"]["plain"]
            for way in WAYS:
                taken, (collectives, given) = found["seconds"][way], found["counted"][way]
                ratio = statistics.median(a / b for a, b in zip(taken, plain, strict=True))
                print(
                    f"| {ranks} | {parallel} | {way} | {1000 * statistics.median(taken):.2f} | {ratio:.2f} | "
                    f"{collectives} | {given} |",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        own, count, place, kind, wide, times = sys.argv[2:]
        worker(int(own), int(count), Path(place), kind, int(wide), int(times))
    else:
        main()
