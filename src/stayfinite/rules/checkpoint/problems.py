"""Shared by the rules about the files themselves: what the reader noted, as findings."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule
from stayfinite.findings.subjects.checkpoint import Checkpoint


def report(rule: Rule[Checkpoint], checkpoint: Checkpoint, fix: str, *what: str) -> Iterator[Finding]:
    """A finding for each problem of some kinds."""
    for problem in checkpoint.problems:
        if problem.what in what:
            yield rule.finding(problem.message, fix=fix, evidence=problem.evidence, file=problem.file)
