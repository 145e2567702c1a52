"""The samples that make a batch fail: exactly those, in few replays."""

import random
from collections.abc import Sequence

import pytest

from stayfinite.prove.blame import Replays, blame
from stayfinite.prove.minimise import Samples


@pytest.mark.parametrize("seed", range(50))
def test_two_bad_of_64_in_at_most_40_replays(seed: int) -> None:
    bad = sorted(random.Random(seed).sample(range(64), 2))
    asked = Samples(lambda chosen: any(one in bad for one in chosen))
    assert asked.culprits(64) == bad
    assert asked.replays <= 40


def test_a_pair_that_fails_only_together() -> None:
    def fails(chosen: Sequence[int]) -> bool:
        return {5, 40} <= set(chosen)

    asked = Samples(fails)
    assert asked.culprits(64) == [5, 40]


def test_suspects_are_asked_first_and_not_believed() -> None:
    asked = Samples(lambda chosen: 7 in chosen)
    assert asked.culprits(64, suspects=[7]) == [7] and asked.replays == 2
    assert Samples(lambda chosen: 7 in chosen).culprits(64, suspects=[3]) == [7]
    assert Samples(lambda chosen: False).culprits(8) is None
    assert Samples(lambda chosen: len(chosen) > 60, replays=5).culprits(64) is None


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [
        (Replays((True, True, True), False, True, False), "data"),
        (Replays((True, True, True), True, False, False), "state"),
        (Replays((True, True, True), True, True, True), "state"),
        (Replays((True, True, True), False, False, False), "both"),
        (Replays((True, True, True), True, True, False), "both"),
        (Replays((True, False, True), False, True, False), "flaky"),
        (Replays((True, True, True)), None),
        (Replays((True, True, True), False), None),
    ],
)
def test_blame(seen: Replays, wanted: str | None) -> None:
    assert blame(seen) == wanted
