"""A loss scale that falls from where it had held is foretold before its floor; one that a scaler looks for is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stayfinite import Guard

LARGEST = torch.finfo(torch.float32).max


def forecasts(folder: Path, steps: int, size: Callable[[int], float]) -> list[dict[str, Any]]:
    """Train on gradients of about this size: with a scale of 65536 they fit up to LARGEST / 65536."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", growth_interval=10_000)
    with Guard(model, optimizer, scaler=scaler, clip_norm=1.0, run_dir=folder, quiet=True) as guard:
        for step in range(steps):
            x = torch.rand(8, 4) + 1
            guard.step(lambda x=x, step=step: (model(x) * size(step)).mean())
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("event") == "forecast"]


def test_a_scale_that_falls_between_two_samples_is_looked_at_more_often(tmp_path: Path) -> None:
    """Samples are 16 steps apart by then, and so is the floor."""
    fits, falls = LARGEST / 65536, 200
    found = forecasts(tmp_path, falls + 11, lambda s: 1.0 if s < falls else fits * 2.0 ** (s - falls))
    assert [line["what"] for line in found] == ["loss scale"]
    low, _ = found[0]["steps_left"]
    assert found[0]["step"] > falls and found[0]["value"] >= 32 and low >= 5


def test_a_scaler_that_settles_far_below_its_first_scale_is_silent(tmp_path: Path) -> None:
    assert forecasts(tmp_path, 60, lambda _: LARGEST / 400) == []
