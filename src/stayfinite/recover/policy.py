"""Policy: what to do about a failing step. The ladder is pure: counts in, action out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["none", "skip", "lower-lr", "rollback", "stop"]


class RunStopped(RuntimeError):
    """The policy ended the run. The message says why, and where the clean checkpoint is."""

    def __init__(self, message: str, checkpoint: str | None = None) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


@dataclass(frozen=True, slots=True)
class Policy:
    """The recovery ladder: skip, then lower the learning rate, then roll back, then stop. Each rung is bounded.

    `bad_component="leave-out"`: a step one of whose loss components is not finite is made again from the others,
    and says so; the same budget bounds it.
    `foresee`: what a forecast of an overflow does. "warn" says it; "keep" also takes a verified copy of the state while
    it is good, to go back to; "lower-lr" lowers the learning rate as well; "stop" ends the run with a clean checkpoint.
    Except for "warn", a failure that was foretold goes back at once, and not after `rollback_after` failures; the rate
    is lowered as far as the growth needs, and without growth by half a rung. `max_rollbacks` bounds these ways back and
    those of the ladder each by itself: early ones take nothing from a run that fails again and again later.
    `lower_lr_after`, `rollback_after` and `stop_after` count failures in a row; None leaves the rung out.
    """

    lower_lr_after: int | None = 4
    lower_lr_by: float = 0.5
    max_lowerings: int = 3
    rollback_after: int | None = 7
    max_rollbacks: int = 3
    stop_after: int = 10
    min_applied: float = 0.5
    min_applied_window: int = 200
    spikes: Literal["skip", "warn", "ignore"] = "skip"
    max_spikes_in_a_row: int = 3
    bad_component: Literal["refuse", "leave-out"] = "refuse"
    scheduler_on_skip: Literal["hold", "advance"] = "hold"
    rng_on_skip: Literal["restore", "advance"] = "restore"
    scale_floor: float = 1.0
    foresee: Literal["warn", "keep", "lower-lr", "stop"] = "keep"

    def __post_init__(self) -> None:
        if not 0 < self.lower_lr_by < 1:
            raise ValueError(f"Policy(lower_lr_by={self.lower_lr_by}): the factor must lie between 0 and 1")
        if self.stop_after < 1:
            raise ValueError(
                f"Policy(stop_after={self.stop_after}): at least 1 failure must be allowed to end it"
            )
        if not 0 <= self.min_applied <= 1:
            raise ValueError(f"Policy(min_applied={self.min_applied}): a share between 0 and 1 is needed")
        if self.min_applied_window < 1:
            raise ValueError(
                f"Policy(min_applied_window={self.min_applied_window}): at least 1 step is needed"
            )
        if not self.scale_floor > 0:
            raise ValueError(f"Policy(scale_floor={self.scale_floor}): the loss scale needs a floor above 0")
        for name, choices in (
            ("spikes", ("skip", "warn", "ignore")),
            ("bad_component", ("refuse", "leave-out")),
            ("scheduler_on_skip", ("hold", "advance")),
            ("rng_on_skip", ("restore", "advance")),
            ("foresee", ("warn", "keep", "lower-lr", "stop")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"Policy({name}={getattr(self, name)!r}): choose one of {', '.join(choices)}"
                )

    @classmethod
    def named(cls, name: str) -> Policy:
        """The presets: "default", "stop" (at the first failure), "skip" (skip only, then stop)."""
        if name == "default":
            return cls()
        if name == "stop":
            return cls(lower_lr_after=None, rollback_after=None, stop_after=1)
        if name == "skip":
            return cls(lower_lr_after=None, rollback_after=None)
        raise ValueError(
            f"unknown policy {name!r}: choose 'default', 'skip' or 'stop', or pass a stayfinite.Policy(...)"
        )

    def decide(
        self,
        failures_in_a_row: int,
        lowered: float,
        rollbacks: int,
        *,
        state_is_bad: bool,
        was_foretold: bool = False,
    ) -> Action:
        """What the ladder says about the failure that just happened.

        `lowered`: rungs by which the rates stand lowered. `rollbacks`: those of the ladder.
        `state_is_bad`: parameters or optimizer state are not finite, so skipping cannot help.
        `was_foretold`: it is the end of a growth that was seen before, so the next batch will fail as well, and the
        run may go back early.
        """
        if failures_in_a_row >= self.stop_after:
            return "stop"
        never = self.rollback_after is None and not self.max_rollbacks
        if (state_is_bad and not never) or failures_in_a_row == self.rollback_after:
            return "rollback" if rollbacks < self.max_rollbacks else "stop"
        if was_foretold:
            return "rollback"
        if (
            self.lower_lr_after is not None
            and failures_in_a_row == self.lower_lr_after
            and lowered < self.max_lowerings
        ):
            return "lower-lr"
        return "skip"

    def goes_back_early(self, early: int) -> bool:
        """May what was foretold send the run back at once, after so many early ways back?"""
        return self.foresee != "warn" and self.rollback_after is not None and early < self.max_rollbacks
