"""RUN010 on runs that ended without a bad value: ruined by one update, or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import RunRecord, StepRecord


def found(losses: Sequence[float], updates: Sequence[float]) -> list[str]:
    records = tuple(
        StepRecord(step, loss, lr=0.5, update_ratio=ratio, applied=True)
        for step, (loss, ratio) in enumerate(zip(losses, updates, strict=True))
    )
    run = RunRecord(history=records, complete=True)
    step = FailedStep(step=len(records), phase="state", trigger="parameter", run=run)
    return [f"{finding.code}: {finding.message}" for finding in explain(step)]


def test_a_loss_that_never_came_back_from_one_update() -> None:
    told = found([2.3, 1e32, 3e32, 2e32, 1e32], [1e31, 0.9, 0.5, 0.4, 0.3])
    assert told[0].startswith(
        "RUN010: at learning rate 0.5 the update of step 0 moved the weights by about 1e+31 times"
    )
    assert "the loss was 2.3 before and 1e+32 at the end" in told[0]


@pytest.mark.parametrize(
    "losses, updates",
    [
        ([2.3, 1e9, 400.0, 30.0, 2.0], [1e31, 0.9, 0.5, 0.4, 0.3]),  # it came back
        ([2.3, 1e32, 3e32, 2e32, 1e32], [0.5, 0.9, 0.5, 0.4, 0.3]),  # no update went far
        ([2.3, 2.2, 2.1, 2.0, 1.9], [50.0, 0.9, 0.5, 0.4, 0.3]),  # a first update on small weights
    ],
)
def test_what_is_no_ruin(losses: list[float], updates: list[float]) -> None:
    assert not any("moved the weights" in told for told in found(losses, updates))


def test_the_rate_to_try_is_measured_by_the_first_update_that_went_too_far() -> None:
    """Later ones are larger because the weights are: by 1e11 nobody would lower a rate of 0.01."""
    ratios = (0.1, 50.0, 1e11)
    records = tuple(
        StepRecord(step, 1.0, lr=0.01, update_ratio=ratio, applied=True) for step, ratio in enumerate(ratios)
    )
    step = FailedStep(3, "forward", "loss", RunRecord(history=records))
    finding = next(one for one in explain(step) if one.code == "RUN010")
    assert "to about 2e-07, at which the first such update (about 50 times) is a thousandth" in finding.fix


@pytest.mark.parametrize(
    "losses, updates",
    [
        ([3.3, *[170.0] * 9], [63.0, *[0.9] * 9]),  # far too far, and ten times as high ever since
        ([8.3, *[1.5e7] * 9], [15.0, *[0.9] * 9]),  # less far, and a thousand times
    ],
)
def test_a_loss_that_stays_many_times_as_high(losses: list[float], updates: list[float]) -> None:
    assert "the update of step 0 moved the weights" in found(losses, updates)[0]


def test_a_model_that_one_update_has_saturated() -> None:
    """Its loss is finite and lower than before: an actor with weights of 1e18, whose critic goes on to learn."""
    records = tuple(
        StepRecord(n, 0.6 - 0.01 * n, lr=1e18, update_ratio=5e18 if n == 0 else 0.1) for n in range(12)
    )
    step = FailedStep(12, "state", "parameter", RunRecord(history=records, complete=True))
    assert "whatever the loss says (0.6 before and 0.49 at the end)" in explain(step)[0].message
    modest = tuple(
        replace(record, lr=1e-3) for record in records
    )  # a first update of weights that begin at zero
    assert not explain(replace(step, run=RunRecord(history=modest, complete=True)))


@pytest.mark.parametrize(
    "losses, updates",
    [
        ([1e-8, *[0.4] * 9], [3.0, *[0.9] * 9]),  # standardised advantages: the first loss is next to nothing
        ([3.3, *[170.0] * 8, 2.0], [63.0, *[0.9] * 9]),  # it came back
        ([3.3, *[170.0] * 9], [3.0, *[0.9] * 9]),
    ],
)
def test_what_may_be_healthy(losses: list[float], updates: list[float]) -> None:
    assert not found(losses, updates)


def test_the_losses_of_other_optimizers_say_nothing() -> None:
    """A critic's loss of 0.01 before, and an actor's of 40 after, is no rise."""
    pairs = [((0,), 0.01), ((1,), 40.0)] * 12
    records = tuple(
        StepRecord(n, loss, lr=1e-3, update_ratio=25.0 if n == 0 else 0.1, who=who)
        for n, (who, loss) in enumerate(pairs)
    )
    run = RunRecord(history=records, complete=True)
    assert not explain(FailedStep(len(records), "state", "parameter", run))


def test_the_rate_is_that_of_the_optimizer_that_went_too_far() -> None:
    """`lr` is that of the run's first group: here of a generator, which was trained as it should be."""
    records = (
        StepRecord(0, 1.0, lr=2e-4, update_ratio=3e4, who=(1,), rate=1e3),
        StepRecord(1, 1.0, lr=2e-4, update_ratio=0.01, who=(0,), rate=2e-4),
    )
    step = FailedStep(2, "forward", "loss", RunRecord(history=records))
    assert "at learning rate 1000 one update" in explain(step)[0].message


def test_a_loss_that_large_updates_have_driven_up_for_good() -> None:
    """A warm-up that multiplies: updates of half the size of the weights at every step, and no value is bad."""
    told = found([6.8, *[31.0] * 16], [0.44, *[0.3] * 16])
    assert "about 0.44 times their own size" in told[0] and "never nearer to 0 than 31" in told[0]
    assert not found([6.8, *[9.0] * 16], [0.44, *[0.3] * 16])
    assert not found([6.8, *[31.0] * 16], [0.01] * 17)


def test_a_policy_that_one_update_has_saturated_gets_no_gradient_any_more() -> None:
    def told(norm: float) -> list[str]:
        records = tuple(
            StepRecord(
                n, -0.4 if n == 0 else -1e-14, norm if n else 16.0, 10.0, update_ratio=33.0 if n == 0 else 0.1
            )
            for n in range(12)
        )
        run = RunRecord(history=records, complete=True)
        return [found.message for found in explain(FailedStep(12, "state", "parameter", run))]

    assert "every gradient after it was exactly 0" in told(0.0)[0]
    assert "(loss -0.4 before and -1e-14 at the end)" in told(0.0)[0]
    assert not told(0.3)


def raised(rates: Sequence[float], losses: Sequence[float], updates: Sequence[float]) -> list[str]:
    records = tuple(
        StepRecord(step, loss, grad_norm=loss, lr=rate, update_ratio=ratio, applied=True)
        for step, (rate, loss, ratio) in enumerate(zip(rates, losses, updates, strict=True))
    )
    step = FailedStep(len(records), "state", "parameter", run=RunRecord(history=records, complete=True))
    return [f"{finding.code}: {finding.message} {finding.fix}" for finding in explain(step)]


def test_a_schedule_that_raises_the_rate_and_ruins_what_was_learnt() -> None:
    """It comes down again, to what a dead network gives: not one batch stood out, and the rate is not measured."""
    rates = [0.1] * 20 + [0.5] * 40
    losses = [1.0] * 20 + [4.6, 3.9, 4.3, 4.7, 4.2, 6e4] + [30.0] * 4 + [3.3] * 30
    updates = [0.012] * 20 + [0.06, 0.19, 0.2, 0.17, 0.16, 2300.0] + [0.9] * 34
    (told,) = raised(rates, losses, updates)
    assert told.startswith(
        "RUN010: at learning rate 0.5 (it was 0.1 until step 19) the update of step 25 moved"
    )
    assert "the loss was 1 before and 3.3 at the end" in told and "what raises the learning rate" in told
    came_back = losses[:30] + [0.9] * 30
    assert raised(rates, came_back, updates) == []


def test_a_loss_that_goes_far_below_zero_is_well() -> None:
    """A likelihood of counts: its first updates go far, on small weights, and it falls to -13."""
    losses = [0.05, -2.0, -6.0, -9.0, *[-13.0] * 30]
    updates = [0.9, 0.6, 0.4, 0.3, *[0.01] * 30]
    assert raised([0.2] * 34, losses, updates) == []
