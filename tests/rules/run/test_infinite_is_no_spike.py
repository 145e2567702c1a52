"""RUN001 is about numbers that stand out: one that is not finite has a birth, and another cause."""

import math

import pytest

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import RunRecord, StepRecord
from stayfinite.rules.run.bad_batch_spike import BadBatchSpike


@pytest.mark.parametrize(("last", "told"), [(1e4, 1), (math.inf, 0), (math.nan, 0)])
def test_an_infinite_loss_is_no_spike(last: float, told: int) -> None:
    losses = [1.0] * 12 + [last]
    history = tuple(StepRecord(step=step, loss=loss) for step, loss in enumerate(losses))
    step = FailedStep(12, "forward", "loss", RunRecord(history=history))
    assert len(list(BadBatchSpike().check(step))) == told
