"""Plan and TrialResult: what one run of the failing step (or script) changes, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.remedies.remedy import Remedy


@dataclass(frozen=True, slots=True)
class Plan:
    """What a trial changes: texts of files, remedies around the run; and where values fail without it."""

    texts: dict[str, str] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    failing: Sequence[Tensor | None] = ()
    until: int | None = None  # the last step of interest


@dataclass(slots=True)
class TrialResult:
    """How the run with a plan went."""

    ended: str = "finished"  # finished, timed out, died
    failures: list[FailedStep] = field(default_factory=list)
    error: str | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)
    steps: int = 0
    values: list[Tensor] = field(default_factory=list)  # of the expressions that were looked at
    learns: bool | None = None
    applied: int = 0  # updates that were made
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return self.ended == "finished" and not self.failures and self.error is None


Run: TypeAlias = Callable[[Plan, float], TrialResult]
"""Runs a plan for so many seconds at most. The world afterwards is as it was before."""
