"""What `run` and `Guard` add to a healthy step, counted (bench/step_counts.py): op calls and transfers, not seconds.

A step adds one transfer and at most 20 op calls. One that samples vitals adds at most 40, and no transfer more: they
ride with the step's verdict. The early copies, before steps 1, 2, 4, 8 ..., look at all state: one transfer more.
"""

from __future__ import annotations

import statistics

import pytest
from step_counts import STYLES, Counts, added, counted

import preloaded
from stayfinite.watch.vitals.schedule import Schedule

STEPS = 30  # of each style
GUARDED, LONG = "plain, clip, guard", "plain, clip, long"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    styles = [*STYLES, "plain, clip", GUARDED, LONG, f"{LONG}, guard"]
    return counted(tmp_path_factory.mktemp("plain"), styles, run=preloaded.run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Counts:
    folder, launcher = tmp_path_factory.mktemp("run"), ("-m", "stayfinite", "run")
    return {style: counted(folder, [style], *launcher, run=preloaded.run)[style] for style in STYLES}


def bounds(steps: int, *, ahead: int = 0) -> list[tuple[int, int]]:
    """(op calls, transfers) that each step may add: by its kind, as the schedule of the vitals and of copies has it.

    `ahead`: 1 where a copy before step n is taken at the end of step n - 1, for want of a loader to listen to.
    """
    schedule, allowed = Schedule(), []
    for step in range(steps):
        sampled, copied = schedule.wants(step), (step + ahead) & (step + ahead - 1) == 0
        if sampled:
            schedule.sampled(step, 0.0)
        allowed.append(((40 if sampled else 20) + (40 if copied else 0), 2 if copied else 1))
    return allowed


def too_much(
    more: list[tuple[int, int]], allowed: list[tuple[int, int]]
) -> list[tuple[int, tuple[int, int]]]:
    pairs = enumerate(zip(more, allowed, strict=True))
    return [(step, seen) for step, (seen, most) in pairs if seen[0] > most[0] or seen[1] > most[1]]


@pytest.mark.parametrize("style", STYLES)
def test_run_adds_one_transfer_and_twenty_op_calls_a_step(style: str, run: Counts, plain: Counts) -> None:
    allowed = bounds(STEPS, ahead="loader" not in style)[1:]
    assert too_much(added(run[style], plain[style]), allowed) == []


def test_a_guard_adds_no_more(plain: Counts) -> None:
    assert too_much(added(plain[GUARDED], plain["plain, clip"]), bounds(STEPS)[1:]) == []


def test_steps_with_vitals_and_without_are_within_the_bar_on_average(plain: Counts) -> None:
    """Over steps 33 to 98, in which every fourth and then every eighth is sampled; later it is every 64th."""
    more = added(plain[f"{LONG}, guard"], plain[LONG])[32:]
    sampled = [ops for ops, _ in more if ops > 20]
    assert 8 <= len(sampled) <= 16 and statistics.mean(ops for ops, _ in more) <= 20
    assert statistics.mean(transfers for _, transfers in more) <= 1 + 1 / len(more)  # the copy at step 64
