"""RUN017 on evidence written down: a rate that is gone by batches, and schedules that may well end at nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.written import within
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Place, RunRecord, SchedulerFacts, StepRecord

STEADY = tuple(StepRecord(i, 1.0, 1.0, 0.1) for i in range(64))
RUN = FailedStep(200, "state", "parameter", RunRecord(STEADY, STEADY[:16], complete=True))
GONE = SchedulerFacts(
    "StepLR",
    0,
    200,
    (0.1, 1e-3, 1e-40),
    rising=False,
    rose_after_fall=False,
    created=Place("train.py", 20),
    stepped=Place("train.py", 35),
    updates=200,
    peak=0.1,
    gone=170,
)


def codes(schedule: SchedulerFacts, run: FailedStep = RUN) -> list[str]:
    return [finding.code for finding in explain(within(run, schedulers=(schedule,)))]


def test_it_names_the_step_of_the_scheduler() -> None:
    found = explain(within(RUN, schedulers=(GONE,)))
    assert [(finding.code, finding.line) for finding in found] == [("RUN017", 35)]
    assert "170" in found[0].message


@pytest.mark.parametrize("steps", [200, 800])
def test_a_scheduler_that_is_stepped_by_micro_batches_is_worse(steps: int) -> None:
    assert codes(replace(GONE, steps=steps, gone=steps - 20)) == ["RUN017"]


@pytest.mark.parametrize(
    "schedule",
    [
        replace(GONE, gone=10),  # a cosine at its end
        replace(GONE, steps=20, gone=15),  # by epochs
        replace(GONE, start_epoch=400),  # a run that was over when it was resumed
        replace(GONE, updates=8, steps=8, gone=6),
        replace(GONE, peak=0.0),
    ],
)
def test_schedules_that_are_right(schedule: SchedulerFacts) -> None:
    assert codes(schedule) == []


def test_a_fit_that_is_done_may_stop() -> None:
    done = tuple(StepRecord(i, 1.0, 1e-5, 0.1) for i in range(64))
    assert codes(GONE, within(RUN, history=done)) == []


def test_an_unfinished_run_is_not_judged() -> None:
    assert codes(GONE, within(RUN, complete=False)) == []
