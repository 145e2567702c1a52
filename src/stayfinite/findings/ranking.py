"""Ranking: the findings of one failing step, the cause first, one explanation per cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stayfinite.findings.finding import Finding
from stayfinite.findings.mechanism.classify import judge
from stayfinite.findings.rule import examine, rules_for
from stayfinite.findings.subjects.failed_step import FailedStep


def explain(step: FailedStep) -> list[Finding]:
    """What the rules say about a step, the cause first."""
    return rank(examine(replace(step, judged=judge(step))), one_per_cause=bool(step.births))


def rank(findings: Iterable[Finding], *, one_per_cause: bool) -> list[Finding]:
    """Order findings by severity, place in the chain of causes and specificity, and drop repeats.

    Where a value was born, several rules may explain the same birth by the same cause: the first is kept. A run
    without a birth may well have the same mistake at two lines, so there only repeats at the same line are dropped.
    """
    found = list(findings)
    behind = _behind({finding.code for finding in found})
    kept: dict[tuple[object, ...], Finding] = {}
    for finding in sorted(found, key=lambda f: (f.severity.rank, f.depth, behind.get(f.code, 0))):
        key = (finding.cause,) if one_per_cause else (finding.code, finding.file, finding.line)
        kept.setdefault(key, finding)
    return list(kept.values())


def _behind(codes: set[str]) -> dict[str, int]:
    """How many of the codes are more specific than each, directly or through others."""
    specific = {rule.code: rule.more_specific_than for rule in rules_for(FailedStep) if rule.code in codes}

    def above(code: str) -> set[str]:
        direct = {other for other, than in specific.items() if code in than}
        return direct.union(*(above(other) for other in direct))

    return {code: len(above(code)) for code in codes}
