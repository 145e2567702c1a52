"""Who is to blame in a script: its failing step with an earlier batch, and with an earlier state."""

import gc
from pathlib import Path

import pytest

from stayfinite.launch.beginning import Beginning
from stayfinite.launch.options import Options
from stayfinite.launch.trial import run_trial
from stayfinite.prove.trial import Arrangement, Plan, TrialResult
from stayfinite.prove.two_by_two import TwoByTwo

SCRIPT = """import torch
from torch import nn

torch.manual_seed({seed})
data = torch.randn(160, 4)
{spoil}
loader = {loader}
net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
opt = torch.optim.{optimizer}
for x in loader:
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
LOADER = "torch.utils.data.DataLoader(data, batch_size=8)"
BAD_SAMPLE = {"spoil": "data[77, 2] = float('inf')", "optimizer": "SGD(net.parameters(), 0.01)"}
DIVERGES = {"spoil": "", "optimizer": "SGD(net.parameters(), 60.0)"}


@pytest.fixture(scope="module", autouse=True)
def _forks_are_cheap() -> None:
    gc.freeze()


def blamed(folder: Path, seed: int, **parts: str) -> tuple[str | None, str]:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(seed=seed, **{"loader": LOADER, **parts}))
    state = folder / "state"
    Beginning().save(state)

    def trial(plan: Plan) -> TrialResult:
        return run_trial(Options(str(script)), state, plan, 60.0)

    failed = trial(Plan()).failures
    assert failed
    return TwoByTwo(trial, lambda: False).asked(failed[0].step)


@pytest.mark.parametrize("seeds", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize(("parts", "wanted"), [(BAD_SAMPLE, "data"), (DIVERGES, "state")])
def test_the_batch_or_the_state(parts: dict[str, str], wanted: str, seeds: int, tmp_path: Path) -> None:
    assert [blamed(tmp_path, seed, **parts) for seed in range(seeds)] == [(wanted, "")] * seeds


def test_without_a_loader_nobody_is_blamed_and_it_is_said(tmp_path: Path) -> None:
    found, why = blamed(tmp_path, 0, **{**BAD_SAMPLE, "loader": "data.split(8)"})
    assert found is None and "takes none from a DataLoader" in why


def test_the_state_that_is_called_good_is_before_the_step() -> None:
    for step in range(1, 200):
        assert 0 <= Arrangement(step).copied_before < step
    assert [Arrangement(step).copied_before for step in (1, 2, 3, 5, 9, 64, 65)] == [0, 1, 2, 4, 8, 32, 64]
