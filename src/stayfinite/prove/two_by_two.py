"""TwoByTwo: a failing step of a script with its batch or an earlier one, in its state or in an earlier one."""

from __future__ import annotations

from collections.abc import Callable

from stayfinite.prove.blame import Replays, blame
from stayfinite.prove.trial import Arrangement, Plan, TrialResult

_NOT_KNOWN = "who is to blame is not known: "


class TwoByTwo:
    """`trial` runs the script with a plan; `over` says that no time is left. The null replay has failed every time."""

    def __init__(self, trial: Callable[[Plan], TrialResult], over: Callable[[], bool]) -> None:
        self._trial, self._over = trial, over

    def asked(self, step: int) -> tuple[str | None, str]:
        """data, state or both; or None and a sentence that says why nobody is blamed."""
        if step < 1:
            return None, _NOT_KNOWN + "the first step has no other batch and no other state"
        other = self._fails(Arrangement(step, other_batch=True))
        if other is None:
            why = "another batch could not be given to the step"
            return None, f"{_NOT_KNOWN}{why} (the script takes none from a DataLoader, or time was short)"
        this_good = self._fails(Arrangement(step, good_state=True))
        other_good = self._fails(Arrangement(step, other_batch=True, good_state=True)) if other else None
        found = blame(Replays((True,), other, this_good, other_good))
        if found is None:
            return (
                None,
                _NOT_KNOWN + "there was no earlier state that the step could begin with, or no time for it",
            )
        return found, ""

    def _fails(self, arrangement: Arrangement) -> bool | None:
        """Whether the step fails so; None if it could not be arranged."""
        if self._over():
            return None
        result = self._trial(Plan(until=arrangement.step, arrangement=arrangement))
        if result.ended != "finished" or not result.arranged:
            return None
        return result.error is not None or any(one.step == arrangement.step for one in result.failures)
