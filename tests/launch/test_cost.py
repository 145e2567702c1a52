"""What `run` and `Guard` add to a healthy step, counted (bench/step_counts.py): op calls and transfers, not seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from step_counts import STYLES, Counts, added, counted


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    return counted(tmp_path_factory.mktemp("plain"), [*STYLES, "plain, clip", "plain, clip, guard"])


def too_much(with_it: list[tuple[int, int]], alone: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(step, op calls, transfers) where more than 20 op calls or one transfer were added."""
    more = enumerate(added(with_it, alone), start=1)
    return [(step, ops, transfers) for step, (ops, transfers) in more if ops > 20 or transfers > 1]


def test_run_adds_one_transfer_and_twenty_op_calls_a_step(tmp_path: Path, plain: Counts) -> None:
    run = counted(tmp_path, STYLES, "-m", "stayfinite", "run")
    assert {style: too_much(run[style], plain[style]) for style in STYLES} == {style: [] for style in STYLES}


def test_a_guard_adds_no_more(plain: Counts) -> None:
    assert too_much(plain["plain, clip, guard"], plain["plain, clip"]) == []
