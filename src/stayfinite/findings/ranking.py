"""Ranking: the findings of one failing step, most likely first, one explanation per cause."""

from __future__ import annotations

from collections.abc import Iterable

from stayfinite.findings.finding import Finding, worst_first
from stayfinite.findings.rule import examine
from stayfinite.findings.subjects.failed_step import FailedStep


def explain(step: FailedStep) -> list[Finding]:
    """What the rules say about a step: errors first, then by confidence."""
    return rank(examine(step), one_per_cause=bool(step.births))


def rank(findings: Iterable[Finding], *, one_per_cause: bool) -> list[Finding]:
    """Order findings and drop repeats.

    Where a value was born, several rules may explain the same birth by the same cause, and later births repeat
    the cause of the first: only the most certain one is kept. A run without a birth may well have the same
    mistake at two lines, so there only repeats at the same line are dropped.
    """
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in worst_first(list(findings)):
        key = (finding.cause,) if one_per_cause else (finding.code, finding.file, finding.line)
        kept.setdefault(key, finding)
    return list(kept.values())
