"""The keeper against random courses: a copy from before the growth survives, none is at the edge, none grows old."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stayfinite import Guard
from stayfinite.findings.subjects.outlook import FLOAT16_LIMIT, SQUARED_LIMIT, ModuleVital, VitalSample
from stayfinite.guarding.keeper import Keeper
from stayfinite.watch.course import Course
from stayfinite.watch.vitals.schedule import Schedule

EVERY = 100
LIMITS = st.sampled_from([FLOAT16_LIMIT, SQUARED_LIMIT])
NOISE = st.sampled_from([0.0, 0.05, 0.2, 0.35])
SEEDS = st.integers(0, 2**32)
COSTS = st.sampled_from([0.01, 0.3])
"""Of a sample, in steps; with the larger one in 64 steps is all that is affordable."""


def copies_of(
    size: Callable[[int], float], steps: int, limit: float, cost: float
) -> tuple[list[int], int | None]:
    """The steps before which a copy is taken of a run whose largest output is `size`, and the step that fails."""
    keeper, course, schedule = Keeper(EVERY), Course(), Schedule()
    copies: list[int] = []
    fresh = False
    for step in range(steps):
        if fresh and keeper.wants(step, course):
            copies.append(step)
            keeper.kept(step, course)
        fresh = schedule.wants(step)
        if keeper.is_due(step) and (keeper.may_replace(step, course) or not copies):
            copies.append(step)
        if fresh:
            module = ModuleVital(size(step), size(step) / 3, 2.0, "Block", limit)
            course.add(VitalSample(step, {"block": module}))
            schedule.sampled(step, cost)
            schedule.urgent = course.is_urgent
            schedule.look_again(step, course.steps_left(step))
        schedule.lived(1.0)
        if size(step) >= limit:
            return copies, step
    return copies, None


def noisy(level: Callable[[int], float], noise: float, seed: int, steps: int) -> Callable[[int], float]:
    """e to the power of `level`, with what single batches add."""
    source = random.Random(seed)
    sizes = [math.exp(min(700.0, level(step) + source.gauss(0, noise))) for step in range(steps)]
    return sizes.__getitem__


def oldest(copies: list[int], steps: int) -> int:
    """The most steps that going back would ever have cost."""
    return max(b - a for a, b in pairwise([*copies, steps]))


@settings(max_examples=150, deadline=None)
@given(LIMITS, NOISE, SEEDS, COSTS, st.integers(0, 3000), st.floats(0, 1), st.floats(0, 1))
def test_the_last_copy_is_from_before_the_growth_or_long_before_its_end(
    limit: float, noise: float, seed: int, cost: float, begins: int, speed: float, low: float
) -> None:
    between = 1 if begins < 16 else 8 if begins < 128 else 64  # steps from sample to sample when it sets in
    shortest = max(15, 4 * between)
    takes = shortest * (2000 / shortest) ** speed
    first, last = math.log(0.1), math.log(limit)
    first += low * (last - first) * 0.4
    level = noisy(
        lambda step: first + (last - first) * max(0, step - begins) / takes,
        noise,
        seed,
        begins + int(takes) + 60,
    )
    copies, failed = copies_of(level, begins + int(takes) + 60, limit, cost)
    assert failed is not None and copies
    share = max(0, copies[-1] - begins) / takes
    end = max(failed, begins + int(takes))  # of the growth: a single batch may be past the limit before
    assert share <= 0.6 or end - copies[-1] >= EVERY, (share, end - copies[-1])


@settings(max_examples=60, deadline=None)
@given(LIMITS, NOISE, SEEDS, st.sampled_from([0.01, 0.3, 2.0]), st.floats(0, 1))
def test_a_level_run_is_copied_as_ever(
    limit: float, noise: float, seed: int, cost: float, where: float
) -> None:
    highest = math.log(limit) - math.log(3) - 6 * noise
    at = math.log(0.1) + where * (highest - math.log(0.1))
    copies, failed = copies_of(noisy(lambda _: at, noise, seed, 3000), 3000, limit, cost)
    assert failed is None and oldest(copies, 3000) <= (EVERY if noise < 0.1 else 6 * EVERY)


@settings(max_examples=60, deadline=None)
@given(LIMITS, SEEDS, COSTS, st.integers(0, 600), st.floats(5, 400), st.floats(0.1, 0.97))
def test_growth_that_ends_short_of_the_limit_is_over_some_day(
    limit: float, seed: int, cost: float, begins: int, pace: float, reaches: float
) -> None:
    first, last = 0.0, math.log(limit)
    noise = min(0.1, (1 - reaches) * last / 5)
    level = noisy(
        lambda step: first + reaches * (last - first) * (1 - math.exp(-max(0, step - begins) * 3 / pace)),
        noise,
        seed,
        6000,
    )
    copies, failed = copies_of(level, 6000, limit, cost)
    assert failed is None
    rests = begins + 2 * pace
    assert 6000 - copies[-1] <= 6 * EVERY and oldest([c for c in copies if c > rests] or [0], 6000) <= 2400


def test_a_healthy_run_that_grows_is_copied_every_hundred_steps(tmp_path: Path) -> None:
    """Values that are learnt from 0 to 60 in float32: growth all the time, but nowhere near a limit."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    guard = Guard(model, optimizer, run_dir=tmp_path, quiet=True)
    ages = []
    for step in range(450):
        x = torch.randn(16, 4)
        guard.step(lambda x=x: (model(x) - 100).pow(2).mean())
        copied = guard.recovery.last_good.step
        assert copied is not None
        ages.append(step - copied)
    guard.close()
    assert model(torch.zeros(1, 4)).item() > 50
    assert max(ages) < EVERY


def test_weights_that_one_update_has_ruined_are_no_copy_to_go_back_to(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), 1e6), run_dir=tmp_path, quiet=True, prove="off")
    for _ in range(3):
        guard.step(lambda: model(torch.randn(8, 4)).abs().mean())
    assert guard.recovery.last_good.step == 0  # not 1 and 2, which are as finite
    told = (tmp_path / "run.jsonl").read_text(encoding="utf-8")
    assert "does not become the last good one: the update before it was" in told
