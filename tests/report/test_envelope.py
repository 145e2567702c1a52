"""The reduction of a series: nothing that matters is lost, whatever the order, the length and the values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stayfinite.report.record.envelope import Envelope

finite = st.floats(allow_nan=False, allow_infinity=False)
anything = st.one_of(
    finite,
    st.integers(-(10**400), 10**400),
    st.sampled_from(
        ["nan", "inf", "-inf", None, True, [1.0], {"a": 1}, "a word", math.nan, math.inf, -math.inf]
    ),
)
KINDS = {2: "nan", 3: "inf", 4: "-inf"}


def kind_of(value: Any) -> str | float | None:
    """By another way than the code: what a value is."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        return value if value in KINDS.values() else None
    try:
        number = float(value)
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    return (
        number if math.isfinite(number) else ("nan" if number != number else "inf" if number > 0 else "-inf")
    )


def assert_nothing_is_lost(envelope: Envelope, steps: list[int], values: list[Any], limit: int) -> None:
    assert len(envelope.buckets) <= limit
    by_bucket: dict[int, list[str | float]] = {}
    for step, value in zip(steps, values, strict=True):
        kind = kind_of(value)
        if kind is not None:
            by_bucket.setdefault(step // envelope.width, []).append(kind)
    assert set(envelope.buckets) == set(by_bucket)
    for number, kinds in by_bucket.items():
        numbers = [kind for kind in kinds if isinstance(kind, float)]
        bucket = envelope.buckets[number]
        assert bucket[0] == (min(numbers) if numbers else None)
        assert bucket[1] == (max(numbers) if numbers else None)
        assert {name: bucket[at] for at, name in KINDS.items()} == {
            name: kinds.count(name) for name in KINDS.values()
        }


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5000), anything), max_size=200), st.integers(1, 16), st.integers(1, 7)
)
def test_extremes_and_every_non_finite_value_survive(
    points: list[tuple[int, Any]], limit: int, pieces: int
) -> None:
    envelope = Envelope(limit)
    for at in range(pieces):
        part = points[at::pieces]
        envelope.extend([step for step, _ in part], [value for _, value in part])
    ordered = [point for at in range(pieces) for point in points[at::pieces]]
    assert_nothing_is_lost(envelope, [s for s, _ in ordered], [v for _, v in ordered], limit)


@settings(max_examples=100, deadline=None)
@given(st.lists(anything, max_size=300), st.integers(0, 10**6), st.integers(1, 16), st.integers(1, 64))
def test_the_quick_way_of_consecutive_steps_gives_the_same(
    values: list[Any], first: int, limit: int, piece: int
) -> None:
    envelope = Envelope(limit)
    for at in range(0, len(values), piece):
        part = values[at : at + piece]
        envelope.extend(range(first + at, first + at + len(part)), part)
    assert_nothing_is_lost(envelope, list(range(first, first + len(values))), values, limit)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 400), anything), max_size=30), max_size=8), st.integers(1, 12)
)
def test_a_page_that_follows_the_changes_has_what_a_page_that_begins_now_gets(
    rounds: list[list[tuple[int, Any]]], limit: int
) -> None:
    envelope, seen = Envelope(limit), {}
    for points in rounds:
        envelope.extend([step for step, _ in points], [value for _, value in points])
        change = envelope.take_changes()
        if change is not None:
            if change["whole"]:
                seen.clear()
            seen |= _buckets(change)
        assert seen == _buckets(envelope.to_json())


def _buckets(told: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
    bad = {i: counts for i, *counts in told.get("bad", [])}
    high = told.get("high", told["low"])
    return {
        at: (told["width"], told["low"][i], high[i], *bad.get(i, [0, 0, 0]))
        for i, at in enumerate(told["at"])
    }


def test_a_million_steps_with_one_spike_and_one_nan() -> None:
    envelope = Envelope()
    for start in range(0, 1_000_000, 5000):
        values: list[Any] = [1.0] * 5000
        if start == 610_000:
            values[123] = 812.5
            values[456] = "nan"
        envelope.extend(range(start, start + 5000), values)
    assert 1024 < len(envelope.buckets) <= 2048
    assert max(bucket[1] for bucket in envelope.buckets.values()) == 812.5
    assert envelope.buckets[610_456 // envelope.width][2] == 1
    assert sum(bucket[2] for bucket in envelope.buckets.values()) == 1


def test_steps_far_apart_stay_apart() -> None:
    envelope = Envelope(8)
    envelope.extend([0, 2**40, 2**52], [1.0, 2.0, "inf"])
    assert envelope.width == 1 and len(envelope.buckets) == 3


def test_an_envelope_without_buckets_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Envelope(0)
