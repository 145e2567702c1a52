"""A framework's own step, noted while it runs, is run again when its update is refused: with its batches, uncounted."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.guarding.framework_steps import around_framework_step
from stayfinite.watch.intercept import intercept


class Framework:
    """Reads all micro-batches of an update ahead, and one more; counts its steps when they are over."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int) -> None:
        self.model, self.optimizer, self.micro_batches = model, optimizer, micro_batches
        self.count, self.seen = 0, 0

    def training_step(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        loss = self.model(inputs).square().mean() / self.micro_batches
        if self.count == 3:  # true of the third update while it is made
            loss = loss / (inputs.sum() * 0)  # born here
        loss.backward()
        return loss.detach()

    def train(self, batches: list[Tensor], guard: Guard) -> None:
        step = partial(around_framework_step, guard.loop, Framework.training_step, self)
        for first in range(0, len(batches), self.micro_batches):
            ahead = batches[first : first + self.micro_batches + 1]
            for inputs in ahead[: self.micro_batches]:
                step(inputs)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.count += 1
            guard.loop.decision.end_body()
            guard.loop.end_step()


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_located_with_its_own_batches(micro_batches: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    framework = Framework(model, optimizer, micro_batches)
    guard = Guard(model, optimizer, run_dir=tmp_path, policy="skip", quiet=True, prove="off")
    batches = [torch.rand(4, 3) for _ in range(8 * micro_batches)]
    with ExitStack() as listening:
        listening.enter_context(intercept(guard.loop, [optimizer], None))
        guard.loop.listen_always()
        framework.train(batches, guard)
    guard.close()
    assert (guard.counters.applied, guard.counters.skipped) == (7, 1)
    assert framework.seen == len(batches)  # the replay was another process's
    (file,) = tmp_path.glob("incidents/*/incident.json")
    incident: dict[str, Any] = json.loads(file.read_text())
    lines = Path(__file__).read_text().splitlines()
    born = next(n for n, line in enumerate(lines, 1) if line.endswith("# born here"))
    assert incident["reproduced"] is True and incident["birth"]["line"] == born
    assert all(torch.isfinite(p).all() for p in model.parameters())
