"""One rank of trainings whose last good copy is kept once for all ranks. Prints a JSON line a task: what it saw.

`python copied_once.py RANK RANKS FOLDER TASK...`
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
from torch.nn.parallel import DistributedDataParallel

from stayfinite import Guard, Policy, RunStopped


class Training:
    """Small, with buffers of each rank's own, and weights that are not in one piece of memory."""

    def __init__(self, task: str, rank: int, folder: Path) -> None:
        torch.manual_seed(0)
        self.task, self.rank = task, rank
        network = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))
        network[3].weight = nn.Parameter(network[3].weight.detach().t().contiguous().t())
        network[0].register_buffer("own", torch.full((7,), float(rank)))
        self.model = DistributedDataParallel(network, broadcast_buffers=False)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            self.model.parameters(), 1e-2, amsgrad=True, foreach=False
        )
        policies = {"ladder": Policy(lower_lr_after=1, rollback_after=2), "stop": Policy(max_rollbacks=0)}
        self.guard = Guard(
            self.model,
            self.optimizer,
            run_dir=folder / task,
            quiet=True,
            check_every=0 if "last" in task else 1,
            policy=policies.get(task, "default"),
        )
        self.seen: dict[int, str] = {}  # the state that the forward pass of a step found
        self.bad_steps: set[int] = set()

    def digest(self) -> str:
        """Of weights, moments and buffers here, and of what is trained how fast."""
        moments = [v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        tensors = [*self.model.parameters(), *moments, *self.model.buffers()]
        return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()

    def loss(self, step: int) -> Tensor:
        self.seen.setdefault(step, self.digest())
        if self.task == "stop" and step == 6 and self.rank == 1:
            spoil(self.model.module[0].weight)
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + self.rank))
        bad = step in self.bad_steps and self.rank == 1
        return F.cross_entropy(self.model(x), x[:, :3].argmax(1)) * (float("nan") if bad else 1.0)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.guard.step(self.loss, self.guard.step_count)

    def moments(self) -> dict[str, Any]:
        return self.optimizer.state[self.model.module[0].weight]

    def report(self) -> dict[str, Any]:
        record = self.guard.run_dir / "run.jsonl"
        lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
        weights = b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())
        return {
            "seen": self.seen,
            "held": self.guard.recovery.last_good.nbytes,
            "state": self.guard.state.nbytes(),
            "weights": hashlib.sha256(weights).hexdigest(),
            "events": [[line["event"], line["what"]] for line in lines if "event" in line and "what" in line],
            "rates": [group["lr"] for group in self.optimizer.param_groups],
            "copied_at": self.guard.recovery.last_good.step,
        }


def spoil(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.view(-1)[0] = float("nan")


def do(task: str, rank: int, folder: Path) -> dict[str, Any]:
    training = Training(task, rank, folder)
    guard, network = training.guard, training.model.module
    if "ladder" in task:
        training.bad_steps = {6, 7}
        training.train(9)
        return training.report()
    training.train(6)  # copies are made before steps 0, 1, 2 and 4
    if task == "weight":
        if rank == 1:
            spoil(network[0].weight)
        training.train(2)
    elif task == "moment":
        if rank == 1:
            spoil(training.moments()["exp_avg"])
        training.train(1)
        return {**training.report(), "updates": training.moments()["step"].item()}
    elif task == "replaced":  # a script that makes an optimizer's entry anew on one rank only
        if rank == 1:
            training.moments()["exp_avg"] = torch.full_like(network[0].weight, float("nan"))
        training.train(2)
    elif task == "drift":
        if rank == 1:
            with torch.no_grad():
                network[0].weight[0, 0] += 1e-6
        training.train(4)  # the copy before step 8 is each rank's own
        spoil(network[0].weight)
        training.train(1)
    elif task.startswith("breaks off"):
        if rank == int(task[-1]):  # in the middle of the loop over parameters
            training.optimizer.state[network[1].bias]["exp_avg"] = torch.zeros(99)
        before = [p.detach().clone() for p in training.model.parameters()]
        try:
            training.train(1)
        except RuntimeError:
            now = zip(before, training.model.parameters(), strict=True)
            return {**training.report(), "changed": [not torch.equal(a, b) for a, b in now]}
    elif task == "join":
        with training.model.join():
            training.train(1)
            spoil(network[0].weight)  # on all ranks, as an averaged gradient does it
            training.train(2 + rank)
    elif task == "last":
        spoil(network[0].weight)
        guard.close()
    elif task == "stop":
        try:
            training.train(1)
        except RunStopped as stopped:
            return {**training.report(), "checkpoint": stopped.checkpoint, "digest": training.digest()}
    return training.report()


if __name__ == "__main__":
    torch.set_num_threads(1)
    own_rank, count, scratch = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{scratch / 'store'}",
        rank=own_rank,
        world_size=count,
        timeout=timedelta(seconds=90),
    )
    for given in sys.argv[4:]:
        print(json.dumps(do(given, own_rank, scratch)), flush=True)
    dist.barrier()
    dist.destroy_process_group()
