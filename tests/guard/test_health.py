"""What must be finite and what is infinite on purpose, at the start and later in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stayfinite import Guard
from stayfinite.recover import CheckpointError

NAN, INF = float("nan"), float("inf")


class LazyMask(nn.Module):
    """Makes its causal mask when the first batch shows how long it must be, and grows it for a longer one."""

    def __init__(self, *, persistent: bool = False) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.persistent = persistent

    def forward(self, x: Tensor) -> Tensor:
        if "mask" not in self._buffers or len(self._buffers["mask"]) < len(x):
            mask = torch.full((len(x), len(x)), -INF).triu(1)
            self.register_buffer("mask", mask, persistent=self.persistent)
        mask = self.mask[: len(x), : len(x)]
        return self.line(mask.softmax(-1) @ x).square().mean()


def guarded(model: nn.Module, folder: Path, **options: Any) -> Guard:
    return Guard(
        model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), run_dir=folder, quiet=True, **options
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_a_mask_made_in_mid_run_is_no_alarm(tmp_path: Path, persistent: bool) -> None:
    torch.manual_seed(0)
    model = LazyMask(persistent=persistent)
    guard = guarded(model, tmp_path, check_every=2, snapshot_every=5, save_every=7)
    for length in [4] * 10 + [6] * 10:
        assert guard.step(lambda n=length: model(torch.randn(n, 2))).applied
    assert guard.bad_state() == [] and guard.counters.rollbacks == 0
    guard.restore(guard.save(tmp_path / "x.pt"))


def test_nan_is_never_on_purpose(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("lowest", torch.tensor(INF))
    model.register_buffer("mask", torch.full((3, 3), -INF).triu(1))
    guard = guarded(model, tmp_path)
    assert guard.bad_state() == []
    path = guard.save(tmp_path / "x.pt")
    model.mask[0, 0] = NAN
    ((kind, bad),) = guard.bad_state()
    assert (kind, bad.name, bad.nan, bad.inf) == ("buffer", "mask", 1, 3)
    with pytest.raises(CheckpointError, match="mask holds 1 NaN"):
        guard.save(path)
    model.mask[0, 0] = 0.0
    guard.restore(path)


def test_an_observer_that_starts_at_infinity_may_become_finite(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("lowest", torch.tensor(INF))
    guard = guarded(model, tmp_path, check_every=1)

    def loss() -> Tensor:
        x = torch.randn(4, 2)
        model.lowest.fill_(min(float(model.lowest), float(x.min())))
        return model(x).square().mean()

    assert all(guard.step(loss).applied for _ in range(5))
    assert bool(torch.isfinite(model.lowest))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_running_statistic_that_overflows_is_bad(tmp_path: Path, value: float) -> None:
    """Finite at the start: never on purpose, not even -inf."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    guard = guarded(model, tmp_path)
    model[1].running_mean[0] = value
    assert [bad.name for _, bad in guard.bad_state()] == ["1.running_mean"]
