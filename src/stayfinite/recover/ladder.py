"""Ladder: the policy's memory. Counts what was applied, skipped and rolled back, and says what comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, fields
from itertools import takewhile

from stayfinite.recover.policy import Action, Policy


@dataclass(slots=True)
class Counters:
    """Nothing is silent: every step is in one of these."""

    steps: int = 0
    applied: int = 0
    skipped: int = 0
    backoffs: int = 0
    rolled_back: int = 0
    rollbacks: int = 0
    foretold: int = 0  # of the rollbacks: early ones, at what a forecast had told
    lowerings: int = 0
    spikes: int = 0
    left_out: int = 0  # applied, but without a component that was not finite

    @property
    def success_rate(self) -> float:
        """The share of steps whose update was applied and kept."""
        return (self.applied - self.rolled_back) / self.steps if self.steps else 1.0

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _COUNTED}

    def add(self, others: Counters) -> None:
        """Count what another part of the same run counted."""
        for name, count in others.to_dict().items():
            setattr(self, name, getattr(self, name) + count)

    def load(self, saved: dict[str, int]) -> None:
        """Go on counting where a saved run was."""
        for name in _COUNTED:
            setattr(self, name, saved.get(name, 0))


_COUNTED = tuple(field.name for field in fields(Counters))
_THE_ONLY_ONE = (0,)
_CALM = 4  # decisions
_HARDLY_ANY = 3  # failures, which say nothing of the next step


class Ladder:
    """One failure up, one success back to the ground.

    It counts decisions. A decision is about some of the run's optimizers (`who`, by their number): one that goes well
    says nothing about the others.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.counters = Counters()
        self.lowered = 0.0  # rungs by which the learning rates stand lowered; some ways back take half a rung
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another run goes on here (a restore): what failed before says nothing about it."""
        self._in_a_row: dict[int, int] = {}
        self._have_applied: set[int] = set()
        self.spikes_in_a_row = 0
        self.left_out_in_a_row = 0
        # what RunStopped says, where the loop was left and could not raise it
        self.ended: tuple[str, str | None] | None = None
        self._recent: deque[bool] = deque(maxlen=self.policy.min_applied_window)

    def failures_of(self, who: Collection[int] = _THE_ONLY_ONE) -> int:
        """How often in a row decisions about these optimizers have failed."""
        return max((self._in_a_row.get(number, 0) for number in who), default=0)

    @property
    def failures_in_a_row(self) -> int:
        """The longest row of any optimizer."""
        return max(self._in_a_row.values(), default=0)

    def _of_whom(self) -> str:
        """Several optimizers with updates of their own take turns: more were refused than the row says, or some of
        another one were applied in between."""
        recent, row = list(self._recent), self.failures_in_a_row
        refused = len(list(takewhile(lambda applied: not applied, reversed(recent))))
        several = len(self._in_a_row) > 1 and any(recent[-row:])
        return " of one optimizer" if refused > row or several else ""

    @property
    def is_stuck(self) -> bool:
        """The one that fails has never made an update, whatever others did."""
        longest = self.failures_in_a_row
        failing = {number for number, row in self._in_a_row.items() if row == longest > _HARDLY_ANY}
        return bool(failing) and not failing & self._have_applied

    @property
    def is_calm(self) -> bool:
        """None of the last decisions was a refusal: one success between two failures is no end of a trouble."""
        return all(list(self._recent)[-_CALM:])

    def success(self, who: Collection[int] = _THE_ONLY_ONE, *, whole: bool = True) -> None:
        """A step was applied; `whole`: with all of its loss."""
        if whole:
            self.left_out_in_a_row = 0
        self.counters.steps += 1
        self.counters.applied += 1
        self._in_a_row.update(dict.fromkeys(who, 0))
        self._have_applied.update(who)
        self.spikes_in_a_row = 0
        self._recent.append(True)

    def left_out(self) -> None:
        """A step was made without its bad component."""
        self.left_out_in_a_row += 1
        self.counters.left_out += 1

    @property
    def may_leave_out(self) -> bool:
        """Not more often in a row than failures would be borne."""
        return self.left_out_in_a_row < self.policy.stop_after

    def backoff(self) -> None:
        """The scaler skipped the step by its own rules: counted, no failure."""
        self.counters.steps += 1
        self.counters.backoffs += 1
        self._recent.append(True)

    def skipped_by_scaler(self, *, expected: bool) -> None:
        """A scaler that is not ours skipped the step; `expected`: because of its scale."""
        self.backoff()
        if not expected:
            self.counters.backoffs -= 1
            self.counters.skipped += 1

    def failure(
        self,
        who: Collection[int] = _THE_ONLY_ONE,
        *,
        state_is_bad: bool,
        is_spike: bool,
        was_foretold: bool = False,
    ) -> Action:
        """Count a refused step and say what to do about it."""
        self.counters.steps += 1
        self.counters.skipped += 1
        for number in who:
            self._in_a_row[number] = self._in_a_row.get(number, 0) + 1
        self.spikes_in_a_row = self.spikes_in_a_row + 1 if is_spike else 0
        self.counters.spikes += is_spike
        self._recent.append(False)
        if self.applied_too_few:
            return "stop"
        return self.policy.decide(
            self.failures_of(who),
            self.lowered,
            self.counters.rollbacks - self.counters.foretold,
            state_is_bad=state_is_bad,
            was_foretold=was_foretold and self.may_go_back_early,
        )

    @property
    def may_go_back_early(self) -> bool:
        """May what was foretold send the run back at once?"""
        return self.policy.goes_back_early(self.counters.foretold)

    @property
    def applied_too_few(self) -> bool:
        """Less than the policy's share of the last steps was applied."""
        if len(self._recent) < self.policy.min_applied_window:
            return False
        return sum(self._recent) / len(self._recent) < self.policy.min_applied

    def reason_to_stop(self) -> str:
        if self.failures_in_a_row >= self.policy.stop_after:
            times = (
                "the first failure"
                if self.policy.stop_after == 1
                else f"{self.failures_in_a_row} failures in a row{self._of_whom()}"
            )
            return f"stopped at {times}"
        if self.applied_too_few:
            return (
                f"stopped because less than {self.policy.min_applied:.0%} of the last "
                f"{self.policy.min_applied_window} steps could be applied"
            )
        return f"stopped after {self.counters.rollbacks} rollbacks" if self.counters.rollbacks else "stopped"
