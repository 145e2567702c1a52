"""Plan and TrialResult: what one run of the failing step (or script) changes, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.remedies.remedy import Remedy


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A step with another batch (of an earlier step), or from an earlier state, or both."""

    step: int
    other_batch: bool = False
    good_state: bool = False

    @property
    def copied_before(self) -> int:
        """The state that is called good: before the step of the largest power of two below, as a guard copies early."""
        return 1 << ((self.step - 1).bit_length() - 1) if self.step > 1 else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a trial changes: texts of files, remedies around the run; and where values fail without it."""

    texts: dict[str, str] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    failing: Sequence[Tensor | None] = ()
    until: int | None = None  # the last step of interest
    follow_from: int | None = None  # the first step that is followed op by op; None: all of them
    follow_until: int | None = None  # the last one; those after it are only watched
    arrangement: Arrangement | None = None
    names: tuple[str, ...] = ()  # of which the values are kept where the expression fails


@dataclass(slots=True)
class TrialResult:
    """How the run with a plan went."""

    ended: str = "finished"  # finished, timed out, died
    failures: list[FailedStep] = field(default_factory=list)
    error: str | None = None
    losses: list[tuple[int, float]] = field(default_factory=list)
    steps: int = 0  # the number of the last one that was made
    values: list[Tensor] = field(default_factory=list)  # of the expressions that were looked at
    learns: bool | None = None
    inputs: dict[str, Any] = field(default_factory=dict)  # plain values of the names that were asked for
    applied: int = 0  # updates that were made
    moved: list[tuple[int, float]] = field(default_factory=list)  # by updates, in sizes of the weights
    # parameters and moments that are not finite at the end, although no step failed
    left_bad: tuple[str, ...] = ()
    arranged: bool = False  # the step had the batch and the state that the plan's arrangement asks for
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return self.ended == "finished" and not self.failures and self.error is None and not self.left_bad


Run: TypeAlias = Callable[[Plan, float], TrialResult]
"""Runs a plan for so many seconds at most. The world afterwards is as it was before."""
