"""A batch that ruined a run is named before the rate at which it did; a rate that ruined one is not excused by it."""

from __future__ import annotations

import pytest

from stayfinite.findings.incident import Birth
from stayfinite.findings.outlier_batch import outlier_batch
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import RunRecord, StepRecord
from stayfinite.findings.subjects.traced_birth import TracedBirth

CALM = [StepRecord(n, 1.0 + 0.1 * (n % 3), 2.0, 0.01, update_ratio=0.01) for n in range(20)]
OUTLIER = StepRecord(20, 5e7, 1e4, 0.01, update_ratio=32.0)
AFTER = [StepRecord(21 + n, 1e10 * 1e8**n, 1e9 * 1e8**n, 0.01, update_ratio=1e9) for n in range(3)]


def failed(history: list[StepRecord]) -> FailedStep:
    shown = Birth("aten.mm.default", "mm", "train.py", 7, "x", "f", None, "inf", 0, 1, 8, (0,), "float32")
    birth = TracedBirth(shown, "forward", "finite->inf")
    return FailedStep(24, "forward", "loss", run=RunRecord(history=tuple(history)), births=(birth,))


def test_the_batch_comes_before_the_rate() -> None:
    findings = explain(failed([*CALM, OUTLIER, *AFTER]))
    assert findings[0].code == "RUN001"
    assert "step 20 was applied with a loss of 5e+07 (at most 1.2" in findings[0].message
    assert "RUN010" in [finding.code for finding in findings]


@pytest.mark.parametrize(
    "history",
    [
        [*CALM[:-1], StepRecord(19, 1.0, 2.0, 10.0, update_ratio=30.0), OUTLIER, *AFTER],  # the update led there
        [*CALM, StepRecord(20, 5e7, 3.0, 0.01, update_ratio=0.01)],  # only the loss stands out
        [*CALM, OUTLIER, StepRecord(21, 1.0, 2.0, 0.01, update_ratio=0.01), *AFTER],  # it came back
        [StepRecord(r.step, r.loss, r.grad_norm, r.lr) for r in [*CALM, OUTLIER, *AFTER]],  # updates not seen
        [StepRecord(n, 2.0**n, 2.0**n, 0.01, update_ratio=0.01 * 2**n) for n in range(30)],  # divergence
    ],
)  # fmt: skip
def test_where_an_update_may_have_led_there_or_it_came_back_no_batch_is_blamed(
    history: list[StepRecord],
) -> None:
    assert outlier_batch(history) is None
