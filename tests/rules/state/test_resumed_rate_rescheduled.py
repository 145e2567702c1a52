"""STA036 on evidence written down: which changes of a resumed rate are a scheduler's, and which are meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.written import within
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import LoadEvent, Place, RateChange, RunRecord, SchedulerFacts

LOADED, CHANGED = Place("train.py", 40), Place("train.py", 46)
RUN = FailedStep(step=100, phase="state", trigger="parameter", run=RunRecord(complete=True))
CHANGE = RateChange("LambdaLR", "made", 3e-2, 1, CHANGED)
LOAD = LoadEvent(
    "optimizer",
    LOADED,
    90,
    lr_before=3e-2,
    lr_after=1e-3,
    lr_used=3e-2,
    mid_schedule=True,
    rescheduled=CHANGE,
)
GOES_ON = SchedulerFacts("LambdaLR", 0, 6, (9e-4, 1e-4), False, False, created=CHANGED)


def codes(load: LoadEvent, schedule: SchedulerFacts = GOES_ON) -> list[str]:
    return [finding.code for finding in explain(within(RUN, loads=(load,), schedulers=(schedule,)))]


@pytest.mark.parametrize("rate", [3e-2, 1.6e-3, 6e-4, 1e-7, 0.0])
def test_a_rate_that_a_scheduler_put_in_place_of_the_loaded_one(rate: float) -> None:
    load = replace(LOAD, lr_used=rate, rescheduled=replace(CHANGE, rate=rate))
    found = explain(within(RUN, loads=(load,), schedulers=(GOES_ON,)))
    assert [finding.code for finding in found] == ["STA036"]
    assert found[0].line == 46
    assert "0.001" in found[0].message
    assert f"{rate:g}" in found[0].message


@pytest.mark.parametrize("rate", [1e-3, 1.4e-3, 7e-4])
def test_a_rate_near_the_loaded_one_is_right(rate: float) -> None:
    assert codes(replace(LOAD, lr_used=rate, rescheduled=replace(CHANGE, rate=rate))) == []


def test_what_is_meant_is_not_accused() -> None:
    assert codes(replace(LOAD, rescheduled=None)) == []
    assert codes(replace(LOAD, mid_schedule=False)) == []
    assert codes(replace(LOAD, rescheduled=replace(CHANGE, kind="OneCycleLR"))) == []


def test_a_schedule_that_starts_over_as_a_whole_is_told_once() -> None:
    assert codes(LOAD, replace(GOES_ON, lrs=(3e-2, 2.9e-2))) == ["STA035"]


def test_steps_of_the_scheduler_are_counted() -> None:
    change = replace(CHANGE, kind="StepLR", how="stepped", rate=1e-5, calls=2)
    found = explain(within(RUN, loads=(replace(LOAD, rescheduled=change),), schedulers=(GOES_ON,)))
    assert "stepped" in found[0].message
    assert found[0].evidence["used"] == 1e-5
