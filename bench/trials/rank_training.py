"""One rank's part of a schedule: the training under guard, and the same without guard and without its bad steps."""

from __future__ import annotations

import hashlib
import json
import time
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
from trials.rank_schedule import STEPS, RankSchedule

from stayfinite import Guard, RunStopped

BORN = "born-here"


class Network(nn.Module):
    """The second head is used by some ranks only, where a schedule says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.head, self.extra = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor, use_extra: bool) -> Tensor:
        hidden = F.relu(self.norm(self.first(x)))
        out: Tensor = self.head(hidden)
        return out + self.extra(hidden) if use_extra else out


class RankTraining:
    """Everything of one schedule on one rank."""

    def __init__(self, schedule: RankSchedule, rank: int, ranks: int) -> None:
        self.schedule, self.rank, self.ranks = schedule, rank, ranks
        torch.manual_seed(0)
        self.network: Any = Network()
        self.model: Any = self.network
        if schedule.parallel == "shard":
            fully_shard(self.network, mesh=init_device_mesh("cpu", (ranks,)))
        elif schedule.parallel == "ddp":
            unused = schedule.kind == "rank-parameter"
            self.model = DistributedDataParallel(self.network, find_unused_parameters=unused)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)

    def micro_batches(self) -> list[tuple[int, Tensor]]:
        """(update, batch); some ranks have more where inputs are uneven."""
        more = 2 * self.rank if self.schedule.joins else 0
        made = []
        for update in range(STEPS + more):
            for part in range(self.schedule.accumulate):
                draw = torch.Generator().manual_seed(10_000 * self.rank + 10 * update + part)
                made.append((update, torch.randn(8, 6, generator=draw)))
        return made

    def bad_now(self, update: int) -> bool:
        return any(step == update and rank in (-1, self.rank) for step, rank in self.schedule.faults)

    def loss(self, update: int, x: Tensor) -> Tensor:
        kind, bad = self.schedule.kind, self.bad_now(update)
        if bad and kind == "nan-input":
            x = x.clone()
            x[2, 1] = float("nan")
        out = self.model(x, kind != "rank-parameter" or bad or self.rank == 0)
        value = F.cross_entropy(out, torch.arange(8) % 3)
        nothing = (value - value).detach()
        if bad and kind in ("nan-loss", "rank-parameter"):
            value = value + nothing / nothing  # born-here
        elif bad and kind == "inf-loss":
            value = value + 1 / nothing  # born-here
        elif bad and kind == "nan-gradient":
            value = value + (out * 0.0).square().sum().sqrt()  # born-here
        return value

    def body(self, update: int, x: Tensor, last: bool) -> None:
        """An ordinary loop's: micro-batches without communication, then an average, then the update."""
        schedule = self.schedule
        hold = schedule.parallel == "ddp" and not last
        without = schedule.kind == "no-gradient" and self.bad_now(update)
        if not without:
            with self.model.no_sync() if hold else nullcontext():
                (self.loss(update, x) / schedule.accumulate).backward()
        if not last:
            return
        if schedule.parallel == "plain" and schedule.kind != "no-gradient":
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.ranks
        self.optimizer.step()
        self.optimizer.zero_grad()

    # -- with and without guard

    def guarded(self, folder: Path) -> dict[str, Any]:
        schedule = self.schedule
        guard = Guard(
            self.model,
            self.optimizer,
            run_dir=folder,
            policy=schedule.policy,
            quiet=True,
            check_every=3,
            snapshot_every=4,
            accumulate=schedule.accumulate if schedule.way == "step" else 1,
        )
        stopped = False
        with self.model.join() if schedule.joins else nullcontext():
            try:
                self._train(guard)
            except RunStopped:
                stopped = True
        guard.close()
        return {**self._told(guard), "stopped": stopped, "weights": self.weights(), "finite": self.finite()}

    def _train(self, guard: Guard) -> None:
        schedule, batches = self.schedule, self.micro_batches()
        for number, (update, x) in enumerate(guard.watch(batches) if schedule.way == "watch" else batches):
            if schedule.late_rank == self.rank and update % 5 == 2:
                time.sleep(0.02)
            self._spoil_moment(update)
            if schedule.uneven == "observe" and self.rank == 0 and update % 2:
                guard.observe(batch=x)
            if schedule.way == "watch":
                self.body(update, x, (number + 1) % schedule.accumulate == 0)
            else:
                guard.step(self.loss, update, x)

    def reference(self, left_out: set[int]) -> str:
        """The weights of an unguarded training that was never given these updates."""
        schedule = self.schedule
        for number, (update, x) in enumerate(self.micro_batches()):
            last = (number + 1) % schedule.accumulate == 0
            if update in left_out:
                if schedule.parallel == "ddp":  # it orders its buckets by the passes it has seen
                    self.loss(update, x).backward()
                    self.optimizer.zero_grad()
                continue
            if schedule.way == "watch":
                self.body(update, x, last)
                continue
            (self.loss(update, x) / schedule.accumulate).backward()
            if last:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self.weights()

    def _spoil_moment(self, update: int) -> None:
        if self.schedule.kind != "moment" or not self.bad_now(update):
            return
        for value in self.optimizer.state.get(self.network.norm.weight, {}).values():
            if value.dim():
                with torch.no_grad():
                    getattr(value, "to_local", lambda value=value: value)().fill_(float("nan"))

    def _told(self, guard: Guard) -> dict[str, Any]:
        lines = [json.loads(line) for line in (guard.run_dir / "run.jsonl").read_text().splitlines()]
        files = sorted((guard.run_dir / "incidents").glob("*/incident.json"))
        incidents = [json.loads(file.read_text()) for file in files]
        return {
            "actions": [line["action"] for line in lines if "event" not in line],
            "incidents": [
                {
                    "step": one["step"],
                    "rank": one["rank"],
                    "source": (one["birth"] or {}).get("source"),
                    "codes": [finding["code"] for finding in one["findings"]],
                }
                for one in incidents
            ],
        }

    def _whole(self) -> list[Tensor]:
        entries = (
            () if self.schedule.joins else self.optimizer.state.values()
        )  # join() brings no moments along
        moments = (value for entry in entries for value in entry.values())
        return [
            t.full_tensor() if hasattr(t, "full_tensor") else t for t in (*self.model.parameters(), *moments)
        ]

    def weights(self) -> str:
        return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in self._whole())).hexdigest()

    def finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in self._whole())
