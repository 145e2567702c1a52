"""Two optimizers, one GradScaler, one update() at the end of the body: a refused step is not the scaler's business."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD

from stayfinite import Guard

BAD = 3


def train(folder: Path | None, *, drop_first: bool = False) -> tuple[list[torch.Tensor], dict[str, object]]:
    """With a folder: guarded, and the first model's loss of one body is NaN. Without: that step is left out."""
    torch.manual_seed(0)
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    optimizers = [SGD(model.parameters(), 0.05) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    data = [torch.randn(8, 4) for _ in range(9)]
    guard = (
        Guard(models, optimizers, scaler=scaler, run_dir=folder, locate=False, quiet=True) if folder else None
    )
    for number, x in enumerate(guard.watch(data) if guard is not None else data):
        for turn, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            bad = number == BAD and (turn == 0 or drop_first)
            if bad and guard is None:
                continue
            optimizer.zero_grad()
            loss = model(x).square().mean() * (float("nan") if bad else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        if not (drop_first and number == BAD and guard is None):
            scaler.update()
    return [p.detach().clone() for model in models for p in model.parameters()], scaler.state_dict()


def test_the_other_optimizer_goes_on_with_the_scaler(tmp_path: Path) -> None:
    (weights, scaler), (expected, of_scaler) = train(tmp_path), train(None)
    assert all(torch.equal(*pair) for pair in zip(weights, expected, strict=True))
    assert scaler == of_scaler


def test_nothing_is_left_for_update_if_both_were_refused(tmp_path: Path) -> None:
    (weights, scaler), (expected, of_scaler) = train(tmp_path, drop_first=True), train(None, drop_first=True)
    assert all(torch.equal(*pair) for pair in zip(weights, expected, strict=True))
    assert scaler == of_scaler
