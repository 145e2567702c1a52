"""blame: who is to blame for a failing step, from a two by two of batches and states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replays:
    """Which replays failed: this batch in the present state (several times), another batch, and both in the last
    good state. None: there was no such batch or state."""

    again: tuple[bool, ...]
    other: bool | None = None
    this_good: bool | None = None
    other_good: bool | None = None


def blame(seen: Replays) -> str | None:
    """data, state, both or flaky; None where what was seen does not decide it."""
    if not all(seen.again):
        return "flaky"
    if seen.other is None:
        # Without another batch: a batch that fails in a state in which others were trained is to blame.
        return None
    if seen.other:
        # Any batch fails in this state. If this one fails in the good state too, while others do not, both are bad.
        return "both" if seen.this_good and seen.other_good is False else "state"
    if seen.this_good is None:
        return None
    return "data" if seen.this_good else "both"
