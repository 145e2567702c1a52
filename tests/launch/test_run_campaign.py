"""Random scripts under `stayfinite run` (bench/run_campaign.py): a bad batch leaves no trace in their bits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import preloaded

CAMPAIGN = Path(__file__).parents[2] / "bench" / "run_campaign.py"


@pytest.mark.parametrize("trials", [2, pytest.param(150, marks=pytest.mark.long)])
def test_trials(trials: int) -> None:
    ended = preloaded.run(
        [sys.executable, str(CAMPAIGN), "--trials", str(trials), "--seed", "20"],
        timeout=1800,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " differ" in ended.stdout
