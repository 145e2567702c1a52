"""RUN021 on evidence written down: a factor that is the rate itself, and factors that are none."""

from __future__ import annotations

import pytest

from rules.written import within
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Place, RunRecord, SchedulerFacts, StepRecord

STEADY = tuple(StepRecord(i, 1.0, 1.0, 0.1) for i in range(64))
RUN = FailedStep(64, "state", "parameter", RunRecord(STEADY, STEADY[:16], complete=True))


def codes(base: float, rates: tuple[float, ...], updates: int = 64) -> list[str]:
    schedule = SchedulerFacts(
        "LambdaLR", 0, 64, rates, rising=False, rose_after_fall=False, created=Place("train.py", 9),
        updates=updates, peak=max(rates), base=base,
    )  # fmt: skip
    return [finding.code for finding in explain(within(RUN, schedulers=(schedule,)))]


def test_the_square_of_the_rate() -> None:
    assert codes(1e-3, (2e-7, 6e-7, 1e-6, 1e-6)) == ["RUN021"]


@pytest.mark.parametrize(
    ("base", "rates"),
    [
        (1.0, (0.2, 1.0, 1.0)),
        (1e-3, (2e-4, 1e-3, 1e-3)),
        (1e-3, (2e-7, 4e-7, 6e-7)),
        (1e-3, (1e-3, 1e-6, 1e-6)),
    ],
)
def test_factors(base: float, rates: tuple[float, ...]) -> None:
    assert codes(base, rates) == []


def test_a_few_updates_say_nothing() -> None:
    assert codes(1e-3, (2e-7, 1e-6), updates=5) == []
