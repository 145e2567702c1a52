"""What `run` and `Guard` add to a healthy step, counted (bench/step_counts.py): op calls and transfers, not seconds."""

from __future__ import annotations

import pytest
from step_counts import STYLES, Counts, added, counted


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    return counted(tmp_path_factory.mktemp("plain"), [*STYLES, "plain, clip", "plain, clip, guard"])


def too_much(with_it: list[tuple[int, int]], alone: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(step, op calls, transfers) where more than 20 op calls or one transfer were added."""
    more = enumerate(added(with_it, alone), start=1)
    return [(step, ops, transfers) for step, (ops, transfers) in more if ops > 20 or transfers > 1]


VITALS = "on the steps that sample vitals (watch/vitals) up to 117 op calls and 4 transfers are added"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    return counted(tmp_path_factory.mktemp("run"), STYLES, "-m", "stayfinite", "run")


@pytest.mark.xfail(reason=VITALS)
def test_run_adds_one_transfer_and_twenty_op_calls_a_step(run: Counts, plain: Counts) -> None:
    assert {style: too_much(run[style], plain[style]) for style in STYLES} == {style: [] for style in STYLES}


@pytest.mark.xfail(reason=VITALS)
def test_a_guard_adds_no_more(plain: Counts) -> None:
    assert too_much(plain["plain, clip, guard"], plain["plain, clip"]) == []


def test_a_step_without_a_sample_costs_one_transfer_and_twenty_op_calls(run: Counts, plain: Counts) -> None:
    pairs = [(run[style], plain[style]) for style in STYLES]
    for counts, alone in [*pairs, (plain["plain, clip, guard"], plain["plain, clip"])]:
        more = added(counts, alone)[8:]
        assert min(ops for ops, _ in more) <= 20
        assert min(transfers for _, transfers in more) <= 1
