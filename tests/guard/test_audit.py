"""The audit at the start (STA001 to STA008): fires on the bad set-up, silent on its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.swa_utils import AveragedModel

from guard.models import CNN, GPT, images, texts
from stayfinite import Guard, Severity
from stayfinite.findings import examine
from stayfinite.watch.setup import examine_setup


def codes(guard: Guard) -> set[str]:
    return {finding.code for finding in guard.audit}


def audit(folder: Path, model: nn.Module, optimizer: Any = None, **options: Any) -> Guard:
    return Guard(model, optimizer or SGD(model.parameters(), 0.01), run_dir=folder, quiet=True, **options)


def linear(dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 2).to(dtype)


# -- STA001, STA002: what the tensors hold


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_parameter_that_is_not_finite(tmp_path: Path, value: float) -> None:
    model = linear()
    with torch.no_grad():
        model.weight[1, 2] = value
    guard = audit(tmp_path, model)
    (found,) = [finding for finding in guard.audit if finding.code == "STA001"]
    assert found.severity is Severity.ERROR and "parameter weight" in found.message
    assert found.evidence["nan"] + found.evidence["inf"] == 1


@pytest.mark.parametrize("where", ["buffer", "moment", "ema"])
def test_nan_anywhere_else(tmp_path: Path, where: str) -> None:
    model = nn.Sequential(linear(), nn.BatchNorm1d(2))
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    average = AveragedModel(model)
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    tensor = {
        "buffer": model[1].running_var,
        "moment": optimizer.state[model[0].weight]["momentum_buffer"],
        "ema": next(average.parameters()),
    }[where]
    with torch.no_grad():
        tensor.view(-1)[0] = float("nan")
    guard = audit(tmp_path, model, optimizer, ema=average)
    assert codes(guard) == {"STA001"}


def with_buffer(value: float, dtype: torch.dtype = torch.float32) -> nn.Module:
    model = linear()
    model.register_buffer("mask", torch.full((4, 4), value, dtype=dtype).triu(1))
    return model


@pytest.mark.parametrize("value", [1e31, -3e35])
def test_memory_nobody_initialised(tmp_path: Path, value: float) -> None:
    assert codes(audit(tmp_path / "a", with_buffer(value))) == {"STA002"}
    model = linear()
    with torch.no_grad():
        model.bias[1] = value
    assert codes(audit(tmp_path / "b", model)) == {"STA002"}


def observed() -> nn.Module:
    from torch.ao.quantization import MinMaxObserver

    model = nn.Sequential(linear(), MinMaxObserver())
    assert bool(torch.isinf(model[1].min_val))
    return model


HEALTHY_TENSORS: dict[str, Callable[[], nn.Module]] = {
    "GPT with -inf masks": GPT,
    "finfo.min mask": lambda: with_buffer(torch.finfo(torch.float32).min),
    "bfloat16 finfo.min mask": lambda: with_buffer(torch.finfo(torch.bfloat16).min, torch.bfloat16),
    "float16 mask": lambda: with_buffer(-65504.0, torch.float16),
    "float64 mask": lambda: with_buffer(torch.finfo(torch.float64).min, torch.float64),
    "-1e9 mask": lambda: with_buffer(-1e9),
    "quantization observer": observed,
    "CNN": CNN,
    "integer buffers": lambda: with_buffer(2**40, torch.int64),
    "complex parameters": lambda: linear(torch.complex64),
}


@pytest.mark.parametrize("name", HEALTHY_TENSORS)
@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:Please use quant_min", "ignore:Complex modules"
)
def test_masks_and_observers_are_healthy(tmp_path: Path, name: str, averaged: bool) -> None:
    model = HEALTHY_TENSORS[name]()
    guard = audit(tmp_path, model, ema=AveragedModel(model) if averaged else None)
    assert codes(guard) == set()
    assert guard.bad_state() == []
    guard.restore(guard.save(tmp_path / "x.pt"))


@pytest.mark.parametrize("averaged", [False, True])
def test_a_gpt_with_masks_runs_through_checks_snapshots_and_saves(tmp_path: Path, averaged: bool) -> None:
    torch.manual_seed(0)
    model = GPT(layers=1)
    guard = audit(
        tmp_path, model, AdamW(model.parameters(), 1e-3), ema=AveragedModel(model) if averaged else None,
        check_every=2, snapshot_every=5, save_every=4,
    )  # fmt: skip
    for ids in texts(12):
        assert guard.step(lambda ids=ids: model.loss(ids)).applied
    assert guard.counters.skipped == 0 and codes(guard) == set()


# -- STA003, STA004: half parameters under an adaptive optimizer


@pytest.mark.parametrize("kind", [Adam, AdamW, RMSprop, Adagrad])
def test_half_parameters_with_an_adaptive_optimizer(tmp_path: Path, kind: Any) -> None:
    model = linear(torch.float16)
    guard = audit(tmp_path, model, kind(model.parameters()))
    assert codes(guard) == {"STA003", "STA004"}
    assert {f.severity for f in guard.audit if f.code == "STA003"} == {Severity.ERROR}


def test_an_eps_that_exists_in_half_is_only_a_warning(tmp_path: Path) -> None:
    model = linear(torch.float16)
    assert codes(audit(tmp_path, model, Adam(model.parameters(), eps=1e-4))) == {"STA004"}


def test_bfloat16_is_worth_a_remark(tmp_path: Path) -> None:
    model = linear(torch.bfloat16)
    guard = audit(tmp_path, model, AdamW(model.parameters()))
    assert [(f.code, f.severity, f.cause) for f in guard.audit] == [
        ("STA004", Severity.INFO, "BF16_PRECISION")
    ]


class OwnMaster(torch.optim.Optimizer):
    """Somebody else's optimizer for half parameters: it may keep what it likes."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "eps": 1e-8})


def test_the_healthy_ways_to_use_half(tmp_path: Path) -> None:
    half, single = linear(torch.float16), linear()
    frozen = nn.Sequential(linear(torch.float16).requires_grad_(False), linear())
    for number, (model, optimizer) in enumerate(
        [
            (half, SGD(half.parameters(), 0.1, momentum=0.9)),
            (half, OwnMaster(half.parameters())),
            (single, Adam(single.parameters())),
            (frozen, AdamW(frozen.parameters())),  # a frozen half backbone under a float32 head
        ]
    ):
        assert codes(audit(tmp_path / str(number), model, optimizer)) == set()


# -- STA005: parameters nobody trains


def test_a_parameter_no_optimizer_holds(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), nn.Linear(2, 2))
    optimizer = SGD(model.parameters(), 0.1)
    model[1] = nn.Linear(2, 3)
    guard = audit(tmp_path, model, optimizer)
    (found,) = guard.audit
    assert found.code == "STA005" and found.evidence["names"] == ["1.weight", "1.bias"]


def test_frozen_or_shared_among_optimizers_is_healthy(tmp_path: Path) -> None:
    model = nn.Sequential(linear(), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    optimizers = [SGD(model[0].parameters(), 0.1), Adam(model[1].parameters())]
    assert codes(audit(tmp_path, model, optimizers)) == set()


# -- STA006, STA007: scaler and autocast, seen in the first forward pass


def first_step(folder: Path, autocast: torch.dtype | None, scaler: bool, *, loop: bool) -> Guard:
    model = linear()
    optimizer = SGD(model.parameters(), 0.01)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=16.0) if scaler else None
    guard = audit(folder, model, optimizer, scaler=grad_scaler)

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            return model(torch.ones(2, 4)).float().square().mean()

    assert codes(guard) == set(), "before the first forward pass nothing is known"
    if not loop:
        guard.step(loss)
        return guard
    for _ in guard.watch([0]):
        optimizer.zero_grad()
        if grad_scaler is None:
            loss().backward()
            optimizer.step()
        else:
            grad_scaler.scale(loss()).backward()
            grad_scaler.step(optimizer)
            grad_scaler.update()
    return guard


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize(
    ("autocast", "scaler", "expected"),
    [
        (None, True, {"STA006"}),
        (torch.bfloat16, True, {"STA006"}),
        (torch.float16, True, set()),
        (torch.float16, False, {"STA007"}),
        (torch.bfloat16, False, set()),
        (None, False, set()),
    ],
)
def test_scaler_and_autocast(
    tmp_path: Path, autocast: Any, scaler: bool, expected: set[str], loop: bool
) -> None:
    assert codes(first_step(tmp_path, autocast, scaler, loop=loop)) == expected


# -- STA008: clipping while the gradients are still scaled


@pytest.mark.parametrize("unscaled_first", [False, True])
def test_clipping_before_unscaling(tmp_path: Path, unscaled_first: bool) -> None:
    torch.manual_seed(0)
    model = CNN()
    optimizer = SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    guard = audit(tmp_path, model, optimizer, scaler=scaler)
    for x, y in guard.watch(images(3)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        scaler.scale(nn.functional.cross_entropy(logits.float(), y)).backward()
        if unscaled_first:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert codes(guard) == (set() if unscaled_first else {"STA008"})
    assert len(guard.audit) <= 1, "said once, not at every step"


def test_findings_are_on_record(tmp_path: Path) -> None:
    model = linear(torch.float16)
    guard = audit(tmp_path, model, Adam(model.parameters()))
    guard.close()
    text = (tmp_path / "run.jsonl").read_text(encoding="utf-8")
    assert text.count('"event":"finding"') == len(guard.audit) == 2


@pytest.mark.parametrize(("value", "code"), [(2e38, "STA002"), (float("nan"), "STA001")])
def test_what_a_file_brought_is_not_called_uninitialised(value: float, code: str) -> None:
    held = [("parameter", "module.net.weight", torch.tensor([1.0, value]))]
    for loaded, cause in (({"net.weight"}, "CHECKPOINT_CORRUPT"), (set[str](), "UNINITIALIZED_MEMORY")):
        (found,) = examine(examine_setup(held, [], {}, None, loaded))
        assert (found.code, found.cause) == (code, cause) and ("loaded so" in found.message) == bool(loaded)
