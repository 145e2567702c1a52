"""LastGood: the newest copy of the whole training state that was verified finite, kept in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stayfinite.recover.ladder import Counters
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import StateCopy


class LastGood:
    """One copy, overwritten in place: its cost is the size of the training state, stated in the run's record."""

    def __init__(self, state: TrainingState) -> None:
        self._copy = StateCopy(state, device="cpu")
        self.step: int | None = None
        self.taken = 0  # how many copies there have been
        self.lowerings = 0
        self.applied = 0

    def keep(self, step: int, counters: Counters) -> None:
        """Copy the state. The caller has verified that it is finite."""
        self.step = None  # an interrupt in the middle of copying leaves no half-made snapshot behind
        self._copy.take()
        self.taken += 1
        self.step, self.lowerings, self.applied = step, counters.lowerings, counters.applied

    def restore(self) -> int:
        """Put the whole state back; gives the step it is from."""
        if self.step is None:
            raise RuntimeError("there is no good copy of the training state to go back to")
        self._copy.restore()
        return self.step

    def put_back(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Put single tensors back; gives those that cannot be."""
        return self._copy.put_back(tensors) if self.available else list(tensors)

    def forget(self) -> None:
        """What it holds is of another run than the one that goes on."""
        self.step = None

    @property
    def available(self) -> bool:
        return self.step is not None
