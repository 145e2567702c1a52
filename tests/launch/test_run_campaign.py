"""Random scripts under `stayfinite run` (bench/run_campaign.py): a bad batch leaves no trace in their bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[2] / "bench" / "run_campaign.py"


@pytest.mark.parametrize("trials", [2, pytest.param(150, marks=pytest.mark.long)])
def test_trials(trials: int) -> None:
    ended = subprocess.run(
        [sys.executable, CAMPAIGN, "--trials", str(trials), "--seed", "20"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " differ" in ended.stdout
