"""The real failures beside the repository: the true line among the findings, little else, and silence on controls."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from stayfinite.findings import Severity
from stayfinite.lint.examine import lint
from stayfinite.lint.settings import Settings

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
pytestmark = pytest.mark.skipif(not (CASES / "truth.jsonl").is_file(), reason="the shared cases are not here")
# What no reader of the source can see: a decision of another run, rank or batch.
NOT_IN_THE_SOURCE = {"ema-sticky-nan", "grad-scaler-state-not-restored", "scaler-scale-differs-across-ranks"}


def truths() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / "truth.jsonl").read_text(encoding="utf-8").splitlines()]


def lines_of(name: str) -> list[tuple[int, Severity]]:
    return [(f.line or 0, f.severity) for f in lint([str(CASES / name)], Settings()).findings]


def test_the_true_line_is_among_the_findings() -> None:
    failing = [
        truth for truth in truths() if truth["kind"] != "control" and truth["id"] not in NOT_IN_THE_SOURCE
    ]
    found, others = 0, []
    for truth in failing:
        lines = {line for line, _ in lines_of(f"{truth['id']}.py")}
        found += bool(lines & set(truth["birth_lines"]))
        others.append(len(lines - set(truth["birth_lines"])))
    assert found / len(failing) >= 0.6
    assert median(others) <= 1


def test_controls_are_silent() -> None:
    for truth in truths():
        if truth["kind"] == "control":
            assert lines_of(f"{truth['id']}.py") == [], truth["id"]


def test_a_fixed_line_is_silent() -> None:
    for truth in truths():
        fixed = CASES / f"{truth['id']}.fixed.py"
        if not fixed.is_file():
            continue
        before = {
            _code(line) for line in (CASES / f"{truth['id']}.py").read_text(encoding="utf-8").splitlines()
        }
        text = fixed.read_text(encoding="utf-8").splitlines()
        for line, severity in lines_of(fixed.name):
            changed = _code(text[line - 1]) not in before
            handled = truth["fixed_handled"] and severity is Severity.INFO
            assert not changed or handled, (fixed.name, line)


def _code(line: str) -> str:
    return re.sub(r"\s*#.*", "", line).strip()
