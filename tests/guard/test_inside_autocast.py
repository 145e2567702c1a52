"""Models of every dtype; also a script that holds its whole loop inside autocast, backward, update and all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard


def train(folder: Path | None, dtype: torch.dtype, how: str, *, inside: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    batches = [torch.randn(8, 4, dtype=dtype) for _ in range(20)]

    def loss_of(batch: Tensor) -> Tensor:
        return model(batch).float().pow(2).mean()

    def body(batch: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(batch).backward()
        optimizer.step()

    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        if folder is None:
            for batch in batches:
                body(batch)
        else:
            with Guard(model, optimizer, run_dir=folder, quiet=True) as guard:
                for batch in guard.watch(batches) if how == "watch" else batches:
                    if how == "watch":
                        body(batch)
                    else:
                        guard.step(loss_of, batch)
                assert guard.counters.applied == len(batches)
    return [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("how", ["step", "watch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_bit_changes_and_nothing_is_raised(
    tmp_path: Path, dtype: torch.dtype, how: str, inside: bool
) -> None:
    plain = train(None, dtype, how, inside=inside)
    guarded = train(tmp_path / "run", dtype, how, inside=inside)
    assert all(torch.equal(a, b) for a, b in zip(plain, guarded, strict=True))
