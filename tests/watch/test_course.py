"""The course of a run against random growth: when what was foretold has come true, with and without a failure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from stayfinite.findings.subjects.outlook import SQUARED_LIMIT, ModuleVital, VitalSample
from stayfinite.watch.course import Course

STEPS = 80


def sizes_of(takes: float, past: float, noise: float, seed: int) -> list[float]:
    """Growth from 1 to the limit in so many steps, and on to `past` times the limit, where it rests."""
    source = random.Random(seed)
    end = math.log(SQUARED_LIMIT)
    levels = [min(end * step / takes, end + math.log(past)) for step in range(STEPS)]
    return [math.exp(level + source.gauss(0, noise)) for level in levels]


def follow(sizes: Sequence[float]) -> tuple[Course, int | None]:
    """The course of a run whose every step is sampled, and the step before which it has arrived."""
    course = Course()
    for step, size in enumerate(sizes):
        if course.has_arrived:
            return course, step
        course.add(VitalSample(step, {"block": ModuleVital(size, size / 3, 2.0, "Block", SQUARED_LIMIT)}))
    return course, None


@settings(max_examples=60, deadline=None)
@given(st.floats(12, 40), st.floats(2.0, 1e6), st.floats(0, 0.2), st.integers(0, 2**32))
def test_growth_that_stays_past_its_limit_has_arrived_eight_samples_later(
    takes: float, past: float, noise: float, seed: int
) -> None:
    sizes = sizes_of(takes, past, noise, seed)
    _, arrived = follow(sizes)
    beyond = [size >= 0.999 * SQUARED_LIMIT for size in sizes]
    assert arrived is not None and all(beyond[arrived - 8 : arrived])
    assert arrived <= takes + math.log(2.0) * takes / math.log(SQUARED_LIMIT) + 11


@settings(max_examples=60, deadline=None)
@given(st.floats(12, 200), st.floats(0.01, 0.5), st.floats(0, 0.2), st.integers(0, 2**32))
def test_growth_that_rests_below_its_limit_never_arrives(
    takes: float, past: float, noise: float, seed: int
) -> None:
    assert follow(sizes_of(takes, past, noise, seed))[1] is None


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0, 1e9), st.floats(0, 0.5), st.integers(0, 2**32))
def test_a_signal_that_was_past_it_all_along_has_not_grown_there(
    past: float, noise: float, seed: int
) -> None:
    source = random.Random(seed)
    assert follow([past * SQUARED_LIMIT * math.exp(source.gauss(0, noise)) for _ in range(STEPS)])[1] is None


def test_a_failure_between_two_samples_ends_a_growth_that_was_past_its_limit() -> None:
    sizes = sizes_of(20, 4.0, 0.0, 0)
    below, _ = follow(sizes[:19])
    assert below.alarmed and below.has_grown
    below.failed(19, alarmed=True, sampled=False)
    assert not below.has_come_true, "it may have been the batch"
    beyond, _ = follow(sizes[:22])
    beyond.failed(25, alarmed=True, sampled=False)
    assert beyond.has_come_true


def test_what_was_past_its_limit_before_the_run_went_back_does_not_count() -> None:
    course, arrived = follow(sizes_of(20, 4.0, 0.0, 0))
    assert arrived is not None
    course.went_back(arrived)
    assert not course.has_arrived
