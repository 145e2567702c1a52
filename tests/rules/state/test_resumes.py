"""STA030 and STA038 on evidence written down: losses around a resume, and what was or was not loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.written import within
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Place, Resume, RunRecord, StepRecord

SAVED, LOADED = Place("train.py", 44), Place("train.py", 48)
RUN = FailedStep(
    300,
    "state",
    "parameter",
    RunRecord(complete=True, first_steps=tuple(StepRecord(i, 2.0) for i in range(16))),
)
SMOOTH = tuple(0.2 - 0.003 * i for i in range(32))
CALM = tuple(0.1 + 0.01 * (i % 5) for i in range(32))
COLD = Resume(
    "AdamW",
    250,
    saved=SAVED,
    loaded=LOADED,
    adaptive=True,
    rate_saved=1e-2,
    rate_used=1e-2,
    before=CALM,
    after=(0.12, 3.0, 2.5, 2.0, 1.5, 1.4),
)
WHOLE = replace(
    COLD,
    saved_optimizer=True,
    optimizer_loaded=True,
    has_moments=True,
    after=(4.0, 3.0, 3.5, 2.0, 1.5, 1.4),
)


def findings(resume: Resume) -> list[tuple[str, int | None]]:
    return [(finding.code, finding.line) for finding in explain(within(RUN, resumes=(resume,)))]


def test_a_cold_adam_whose_loss_jumps_after_its_first_update() -> None:
    assert findings(COLD) == [("STA030", 44)]
    assert findings(replace(COLD, saved_optimizer=True)) == [("STA030", 48)]  # it was there, and not loaded


APART = replace(COLD, before=SMOOTH, after=(0.105, 0.16, 0.9, 0.3, 0.4, 0.35, 0.3, 0.25, 0.22, 0.2))


def test_a_smaller_jump_of_a_smooth_loss_is_one_too() -> None:
    assert findings(APART) == [("STA030", 44)]


@pytest.mark.parametrize(
    "resume",
    [
        replace(
            APART, after=(0.105, 0.16, 0.9, 0.3, 0.1, 0.35, 0.3, 0.25, 0.22, 0.2)
        ),  # it comes down to them
        replace(APART, after=APART.after[:6]),  # too few to say that it does not
        replace(APART, before=tuple(b + 0.06 * (i % 2) for i, b in enumerate(SMOOTH))),  # noise is as large
        replace(APART, after=tuple(0.105 + 0.04 * (i > 0) for i in range(10))),  # next to nothing
        replace(APART, optimizer_loaded=True),
    ],
)
def test_what_is_no_jump_of_a_smooth_loss(resume: Resume) -> None:
    assert findings(resume) == []


def test_a_cold_adam_under_a_resumed_schedule_needs_no_jump() -> None:
    calm = replace(COLD, after=CALM[:6])
    assert findings(calm) == []
    assert findings(replace(calm, scheduler_epoch=250)) == [("STA030", 44)]
    assert findings(replace(calm, scheduler_epoch=0)) == []
    assert findings(replace(calm, scheduler_epoch=250, saved=Place())) == [("STA030", 48)]


@pytest.mark.parametrize(
    "resume",
    [
        replace(COLD, adaptive=False),  # plain SGD has no moments
        replace(COLD, has_moments=True),  # restored by hand
        replace(COLD, optimizer_loaded=True),
        replace(COLD, after=(3.0, 2.5, 2.0, 1.5, 1.4)),  # another task from the start: fine-tuning
        replace(COLD, rate_used=1e-1),  # another rate is meant
        replace(COLD, rate_saved=None),  # another kind of optimizer, or other shapes
        replace(COLD, saved=Place()),  # a file from elsewhere
        replace(COLD, after=(0.1, 0.3, 0.2, 0.1, 0.2)),
        replace(COLD, before=CALM[:4]),
        replace(COLD, before=tuple(-loss for loss in CALM)),
        replace(COLD, before=tuple(1e-9 * b for b in CALM), after=tuple(1e-9 * a for a in COLD.after)),
    ],
)
def test_what_is_no_loss_of_moments(resume: Resume) -> None:
    assert findings(resume) == []


def test_a_loss_that_does_not_come_back_with_model_and_optimizer() -> None:
    assert findings(WHOLE) == [("STA038", 44)]
    assert findings(replace(WHOLE, went_on=CALM[:10])) == [("STA038", 44)]


@pytest.mark.parametrize(
    "resume",
    [
        replace(WHOLE, after=CALM[:6]),
        replace(WHOLE, after=(0.12, 3.0, 2.5, 2.0, 1.5, 1.4)),  # the loaded weights were right
        replace(WHOLE, after=(4.0, 0.1, 0.12, 0.11, 0.1, 0.13)),  # one bad batch
        replace(WHOLE, went_on=(3.0, 2.8, 2.2, 1.9, 1.7)),  # a new task, with a load and without
        replace(WHOLE, before=(*CALM[:16], 5.0, 6.0, 4.5, *CALM[:10])),  # losses that jump anyway
        replace(WHOLE, rate_used=1e-1),
        replace(WHOLE, rate_saved=None),
        replace(WHOLE, saved=Place()),
        replace(WHOLE, optimizer_loaded=False, has_moments=False, adaptive=False),
        replace(WHOLE, after=WHOLE.after[:3]),
    ],
)
def test_what_does_not_show_that_state_is_missing(resume: Resume) -> None:
    assert findings(resume) == []
