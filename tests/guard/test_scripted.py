"""A model that torch.jit has scripted is guarded like any other: its buffers are undone, its inside is not measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard


@pytest.mark.parametrize("how", ["step", "watch"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_is_guarded(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    scripted: Any = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    optimizer = torch.optim.Adam(scripted.parameters(), lr=1e-2)
    guard = Guard(
        scripted,
        optimizer,
        run_dir=tmp_path,
        quiet=True,
        locate=False,
        probe=lambda: scripted(torch.ones(2, 4)),
    )
    batches = [torch.randn(8, 4) for _ in range(6)]
    batches[3] = batches[3] * math.nan
    seen: list[dict[str, Tensor]] = []

    def note() -> None:
        seen.append({name: tensor.clone() for name, tensor in scripted.state_dict().items()})

    if how == "step":
        for batch in batches:
            guard.step(lambda batch=batch: scripted(batch).pow(2).mean())
            note()
    else:
        for batch in guard.watch(batches):
            if seen or batch is not batches[0]:
                note()
            optimizer.zero_grad()
            scripted(batch).pow(2).mean().backward()
            optimizer.step()
        note()
    assert guard.counters.applied == 5 and guard.counters.skipped == 1
    assert all(torch.equal(seen[2][name], seen[3][name]) for name in seen[2])  # running means, too
    assert all(tensor.isfinite().all() for tensor in seen[-1].values())
    guard.save(tmp_path / "saved.pt")
    guard.close()
