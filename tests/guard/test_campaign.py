"""Random trials of the campaign (bench/campaign.py): a guarded run with a fault ends in the bits of one without it."""

from __future__ import annotations

import pytest
from campaign import describe, shrink
from trials.tables import Spec, draw
from trials.trial import differences

SEED, TRIALS, GROUP = 20, 300, 30


@pytest.mark.parametrize("first", range(0, TRIALS, GROUP))
def test_trials(first: int) -> None:
    failed = [index for index in range(first, first + GROUP) if differences(draw(SEED, index))]
    lines = []
    for index in failed[:3]:
        spec, found = shrink(draw(SEED, index))
        lines.append(f"python bench/campaign.py --seed {SEED} --only {index}: {spec}: {describe(found)}")
    assert not failed, f"{len(failed)} of {GROUP} trials differ: {failed}\n" + "\n".join(lines)


FOUND = [
    Spec(model="gan", scaler="float16", way="watch", fault="nan in the batch"),
    Spec(model="gan", scaler="float16", way="watch", fault="nan rate"),
    Spec(model="gan", way="watch", fault="nan, continue", turn=1, place="forward"),
]
"""Trials that differed once."""


@pytest.mark.parametrize("spec", FOUND, ids=str)
def test_trials_that_differed(spec: Spec) -> None:
    assert differences(spec) == []
