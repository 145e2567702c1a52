"""Guard on equals guard off: on a healthy run every bit of weights, moments, buffers and random state is the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guard.models import CNN, GPT, images, texts
from stayfinite import Guard

STEPS = 50


def seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def everything(
    model: nn.Module, *optimizers: torch.optim.Optimizer, ema: nn.Module | None = None
) -> list[Tensor]:
    """All that training changes, and the generators it draws from."""
    found = [*model.parameters(), *model.buffers(), *(ema.parameters() if ema else [])]
    for optimizer in optimizers:
        for entry in optimizer.state.values():
            found += [value for value in entry.values() if isinstance(value, Tensor)]
    return [t.detach().clone() for t in found] + [torch.get_rng_state(), torch.tensor(random.getstate()[1])]


def assert_identical(guarded: list[Tensor], plain: list[Tensor]) -> None:
    assert len(guarded) == len(plain)
    for i, (a, b) in enumerate(zip(guarded, plain, strict=True)):
        assert torch.equal(a, b), f"tensor {i} of shape {tuple(a.shape)} differs"


def gpt() -> tuple[GPT, torch.optim.Optimizer, Any, list[Tensor]]:
    seed()
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS), texts(STEPS)


def plain_gpt() -> list[Tensor]:
    model, optimizer, scheduler, data = gpt()
    for ids in data:
        optimizer.zero_grad()
        model.loss(ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return everything(model, optimizer)


def test_gpt_step_function(tmp_path: Path) -> None:
    model, optimizer, scheduler, data = gpt()
    guard = Guard(model, optimizer, scheduler, clip_norm=1.0, run_dir=tmp_path, quiet=True)
    losses = [guard.step(lambda ids=ids: model.loss(ids), batch=ids).loss for ids in data]
    assert guard.counters.applied == STEPS
    assert losses[-1] < 0.7 * losses[0]
    assert_identical(everything(model, optimizer), plain_gpt())


def test_gpt_watched_loop(tmp_path: Path) -> None:
    model, optimizer, scheduler, data = gpt()
    guard = Guard(model, optimizer, scheduler, run_dir=tmp_path, quiet=True)
    for ids in guard.watch(data):
        optimizer.zero_grad()
        model.loss(ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    assert guard.counters.applied == STEPS
    assert_identical(everything(model, optimizer), plain_gpt())


@pytest.mark.parametrize("sync", [True, False])
def test_cnn_with_batch_norm_dropout_and_average(tmp_path: Path, sync: bool) -> None:
    def make() -> tuple[CNN, torch.optim.Optimizer, torch.optim.swa_utils.AveragedModel]:
        seed()
        model = CNN()
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        return model, torch.optim.AdamW(model.parameters(), 1e-3, fused=not sync), average

    data = images(STEPS)
    model, optimizer, average = make()
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
    plain = everything(model, optimizer, ema=average)

    model, optimizer, average = make()
    guard = Guard(model, optimizer, ema=average, clip_norm=1.0, run_dir=tmp_path, sync=sync, quiet=True)
    for x, y in data:
        guard.step(lambda x=x, y=y: {"ce": F.cross_entropy(model(x), y)}, batch=(x, y))
    guard.settle()
    assert guard.counters.applied == STEPS
    assert_identical(everything(model, optimizer, ema=average), plain)


def test_grad_scaler_with_its_own_back_offs(tmp_path: Path) -> None:
    """The first scales overflow float16 on purpose: the guard must leave the back-off to the scaler."""

    def make() -> tuple[CNN, torch.optim.Optimizer, torch.amp.GradScaler]:
        seed()
        model = CNN()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=10)
        return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), scaler

    def loss_of(model: CNN, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(model(x).float(), y)

    data = images(STEPS)
    model, optimizer, scaler = make()
    for x, y in data:
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    plain, plain_scale = everything(model, optimizer), scaler.state_dict()

    model, optimizer, scaler = make()
    guard = Guard(model, optimizer, scaler=scaler, clip_norm=1.0, run_dir=tmp_path / "step", quiet=True)
    for x, y in data:
        guard.step(lambda x=x, y=y: loss_of(model, x, y), batch=(x, y))
    assert guard.counters.backoffs > 0
    assert guard.counters.backoffs + guard.counters.applied == STEPS
    assert guard.counters.skipped == 0
    assert scaler.state_dict() == plain_scale
    assert_identical(everything(model, optimizer), plain)

    model, optimizer, scaler = make()
    guard = Guard(model, optimizer, scaler=scaler, run_dir=tmp_path / "loop", quiet=True)
    for x, y in guard.watch(data):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert guard.counters.backoffs > 0
    assert scaler.state_dict() == plain_scale
    assert_identical(everything(model, optimizer), plain)


@pytest.mark.parametrize("way", ["step", "watch"])
def test_accumulation_of_four(tmp_path: Path, way: str) -> None:
    data = texts(STEPS)

    def make() -> tuple[GPT, torch.optim.Optimizer]:
        seed()
        model = GPT()
        return model, torch.optim.AdamW(model.parameters(), 3e-3)

    model, optimizer = make()
    for i, ids in enumerate(data[:48]):
        (model.loss(ids) / 4).backward()
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    plain = everything(model, optimizer)

    model, optimizer = make()
    if way == "step":
        guard = Guard(model, optimizer, clip_norm=1.0, accumulate=4, run_dir=tmp_path, quiet=True)
        results = [guard.step(lambda ids=ids: model.loss(ids), batch=ids) for ids in data[:48]]
        assert [r.applied for r in results[:4]] == [None, None, None, True]
    else:
        guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)
        for i, ids in enumerate(guard.watch(data[:48])):
            (model.loss(ids) / 4).backward()
            if i % 4 == 3:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    assert guard.counters.applied == 12
    assert_identical(everything(model, optimizer), plain)
