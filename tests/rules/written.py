"""Evidence that a test writes down: a step, with facts about its run."""

from __future__ import annotations

from dataclasses import replace

from stayfinite.findings.subjects.failed_step import FailedStep


def within(step: FailedStep, **facts: object) -> FailedStep:
    """The step, with these facts about its run."""
    return replace(step, run=replace(step.run, **facts))  # type: ignore[arg-type]
