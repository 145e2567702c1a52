"""Targets that binary_cross_entropy refuses: the advice is about their scale, not about class numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rules.watched import incidents_of
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place, RunRecord, TargetFacts

REFUSED = {
    "pixels as bytes": ("torch.tensor([0.0, 255.0])", "from 0 to 255", "divide bytes by 255"),
    "labels of -1 and 1": ("torch.tensor([-1.0, 1.0])", "from -1 to 1", "into 0..1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_given_is_measured(name: str, tmp_path: Path) -> None:
    target, span, advice = REFUSED[name]
    source = f"""
        net = nn.Linear(2, 2)
        p = torch.sigmoid(net(torch.ones(2)))
        loss = F.binary_cross_entropy(p, {target})  #!
    """
    first = incidents_of(source, tmp_path)[0].findings[0]
    assert first.code == "DAT015" and span in first.message and advice in (first.fix or ""), first
    lines = (tmp_path / "script.py").read_text().splitlines()
    assert first.line is not None and "#!" in lines[first.line - 1] and "num_classes" not in (first.fix or "")


def test_without_a_trace_the_error_says_enough() -> None:
    failure = Failure("RuntimeError", "all elements of target should be between 0 and 1", Place("t.py", 3))
    first = next(iter(explain(FailedStep(0, "forward", "exception", failure=failure))))
    assert first.code == "DAT015" and first.line == 3


def test_a_target_that_is_nan_is_beyond_nothing() -> None:
    def codes(low: float, high: float) -> list[str]:
        run = RunRecord(targets=(TargetFacts(Place("t.py", 3), 1, low, high),))
        return [finding.code for finding in explain(FailedStep(0, "forward", "loss", run, loss=math.nan))]

    assert "DAT015" in codes(0.0, 3.0)
    assert "DAT015" not in codes(math.nan, math.nan)
