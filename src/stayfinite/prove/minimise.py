"""culprits: the samples of a batch that make it fail, found by halving; together where only together they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLAYS = 40


class BudgetSpent(Exception):
    """More replays would be needed than are allowed."""


class Samples:
    """Asks a batch of samples which of them fail. `fails(indices)` replays the step with these samples alone."""

    def __init__(self, fails: Callable[[Sequence[int]], bool], replays: int = _REPLAYS) -> None:
        self._fails, self._left, self.replays = fails, replays, 0

    def culprits(self, count: int, suspects: Sequence[int] = ()) -> list[int] | None:
        """The smallest set of samples that still fails; None if none does or the budget is spent.

        `suspects` are tried first: if they fail one by one and the rest does not, nothing else is asked.
        """
        try:
            everything = list(range(count))
            named = sorted({one for one in suspects if 0 <= one < count})
            if named and len(named) * 2 < count and all(self._ask([one]) for one in named):
                rest = [one for one in everything if one not in named]
                if not self._ask(rest):
                    return named
            if not self._ask(everything):
                return None
            return sorted(self._within(everything))
        except BudgetSpent:
            return None

    def _within(self, failing: list[int]) -> list[int]:
        """The culprits of a set that is known to fail."""
        if len(failing) == 1:
            return failing
        half = len(failing) // 2
        left, right = failing[:half], failing[half:]
        parts = [self._within(part) for part in (left, right) if self._ask(part)]
        return [one for part in parts for one in part] if parts else self._together(failing)

    def _together(self, failing: list[int]) -> list[int]:
        """No half fails alone: leave out whatever can be left out (delta debugging)."""
        pieces = 4
        while len(failing) > 1:
            size = max(1, len(failing) // pieces)
            for start in range(0, len(failing), size):
                rest = failing[:start] + failing[start + size :]
                if rest and self._ask(rest):
                    failing, pieces = rest, max(2, pieces - 1)
                    break
            else:
                if size == 1:
                    return failing
                pieces = min(len(failing), pieces * 2)
        return failing

    def _ask(self, indices: Sequence[int]) -> bool:
        if self._left == 0:
            raise BudgetSpent
        self._left -= 1
        self.replays += 1
        return self._fails(indices)
