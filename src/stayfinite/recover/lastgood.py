"""LastGood: the newest copy of the whole training state that was verified finite, kept in host memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from stayfinite.recover.ladder import Counters
from stayfinite.recover.ranks import Ranks
from stayfinite.recover.replicated_copy import ReplicatedCopy, Slot
from stayfinite.recover.state import TrainingState
from stayfinite.recover.state_copy import StateCopy


class LastGood:
    """One copy, overwritten in place: its cost is the size of the training state, stated in the run's record.

    What all ranks have alike is kept by rank 0 alone. Then only all ranks together can go back, and under `join()`,
    where each decides for itself, none.
    """

    def __init__(self, state: TrainingState, ranks: Ranks) -> None:
        self._ranks = ranks
        self._own = StateCopy(state, device="cpu")
        self._replicated = ReplicatedCopy(ranks)
        self.step: int | None = None
        self.taken = 0  # how many copies there have been
        self.applied = 0

    def keep(self, step: int, counters: Counters, replicated: Sequence[Slot] = ()) -> None:
        """Copy the state. The caller has verified that it is finite, and that what is `replicated` is alike."""
        self.step = None  # an interrupt in the middle of copying leaves no half-made snapshot behind
        self._replicated.take(replicated)
        self._own.take(but=[tensor for _, tensor in replicated])
        self.taken += 1
        self.step, self.applied = step, counters.applied

    def restore(self) -> int:
        """Put the whole state back; gives the step it is from. All ranks, where they act together."""
        if self.step is None:
            raise RuntimeError("there is no good copy of the training state to go back to")
        self._replicated.restore()
        self._own.restore()
        return self.step

    def put_back(self, names: Collection[str], tensors: Sequence[Tensor]) -> None:
        """Put single tensors back where that is possible. All ranks must give the same names."""
        self._replicated.put_back(names, tensors)
        self._own.put_back(tensors)

    def forget(self) -> None:
        """What it holds is of another run than the one that goes on."""
        self.step = None

    @property
    def available(self) -> bool:
        """Can be put back now: by all ranks where they act together, else by this one."""
        if self.step is None or not self._replicated.exists or self._ranks.together:
            return self.step is not None
        return self._replicated.is_here and not self._ranks.apart

    @property
    def is_elsewhere(self) -> bool:
        """There is one, but this rank cannot put it back without the others."""
        return self.step is not None and not self.available

    @property
    def mark(self) -> int:
        """What ranks that go back together compare: 0 without a copy, 1 of a whole one, else which it is."""
        if not self.available:
            return 0
        return 2 + (self.step or 0) if self._replicated.exists else 1

    @property
    def nbytes(self) -> int:
        """What this rank holds."""
        return self._own.nbytes + self._replicated.nbytes


def all_can_go_back(marks: Sequence[int]) -> bool:
    """Every rank has a copy, and of a shared one the same."""
    return all(marks) and (max(marks) == 1 or len(set(marks)) == 1)
