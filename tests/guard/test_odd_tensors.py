"""Buffers and parameters of every odd kind: guarded, refused, undone, saved and restored without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard

NAN = float("nan")


def with_buffer(make: Callable[[], Tensor], *, persistent: bool = True) -> nn.Module:
    model = nn.Linear(2, 1)
    model.register_buffer("odd", make(), persistent=persistent)
    return model


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.zeros(3)


def shared() -> nn.Module:
    tensor = torch.zeros(4)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].register_buffer("counts", tensor)
    model[1].register_buffer("counts", tensor)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "expanded": lambda: with_buffer(lambda: torch.zeros(1).expand(8), persistent=False),
    "positions as in BERT": lambda: with_buffer(lambda: torch.arange(16).expand((1, -1)), persistent=False),
    "transposed": lambda: with_buffer(lambda: torch.randn(3, 4).t()),
    "of a larger tensor": lambda: with_buffer(lambda: torch.randn(10)[3:6]),
    "inference": lambda: with_buffer(inference, persistent=False),
    "meta": lambda: with_buffer(lambda: torch.empty(3, device="meta"), persistent=False),
    "sparse": lambda: with_buffer(lambda: torch.eye(4).to_sparse()),
    "sparse csr": lambda: with_buffer(lambda: torch.eye(4).to_sparse_csr(), persistent=False),
    "float8": lambda: with_buffer(lambda: torch.zeros(3).to(torch.float8_e4m3fn)),
    "bool": lambda: with_buffer(lambda: torch.tensor([True, False])),
    "uint16": lambda: with_buffer(lambda: torch.zeros(2, dtype=torch.uint16)),
    "empty": lambda: with_buffer(lambda: torch.empty(0, 3)),
    "scalar": lambda: with_buffer(lambda: torch.tensor(3.0)),
    "complex": lambda: with_buffer(lambda: torch.ones(3, dtype=torch.complex64)),
    "shared by two modules": shared,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(2, 1)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 1)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_run_with_it(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), run_dir=tmp_path, quiet=True,
        check_every=1, snapshot_every=2,
    )  # fmt: skip
    actions = [
        guard.step(lambda factor=factor: model(torch.randn(4, 2)).square().mean() * factor).action
        for factor in (1.0, 1.0, NAN, 1.0, NAN, 1.0)
    ]
    assert actions == ["none", "none", "skip", "none", "skip", "none"]
    assert guard.bad_state() == [] and guard.audit == []
    guard.recovery.roll_back(guard.step_count)
    guard.restore(guard.save(tmp_path / "x.pt"))
    assert guard.step(lambda: model(torch.randn(4, 2)).square().mean()).applied


def test_a_shared_buffer_is_put_back_once(tmp_path: Path) -> None:
    model = shared()
    guard = Guard(model, torch.optim.SGD(model.parameters(), 0.01), run_dir=tmp_path, quiet=True)

    def loss(factor: float) -> Tensor:
        model[0].counts.add_(1)
        return model(torch.randn(4, 2)).square().mean() * factor

    for factor in (1.0, NAN, 1.0):
        guard.step(lambda factor=factor: loss(factor))
    assert model[0].counts is model[1].counts and model[0].counts.tolist() == [2.0] * 4
