"""PastSteps: the applied steps since the last good copy, as long as they are few and small, to be made again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from torch import Tensor
from torch.utils._pytree import tree_leaves

from stayfinite.guarding.attempt import Attempt
from stayfinite.recover.rng import RngState
from stayfinite.watch.watcher import Window

MOST_STEPS: Final = 128
MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PastStep:
    """One applied step: its number, functions and batches, the random numbers before it, and its learning rates."""

    number: int
    window: Window
    rng: RngState | None
    rates: tuple[float, ...]
    nbytes: int


class PastSteps:
    """Holds on to batches that the script would have let go: at most so many, so large, and never on a device."""

    def __init__(self) -> None:
        self._kept: deque[PastStep] = deque()
        self._bytes = 0
        self._dropped = -1  # the newest step that is no longer here though its copy may be

    def add(self, number: int, attempt: Attempt, rng: RngState | None) -> None:
        """The newest always stays: it is what a failing batch is compared with."""
        window = Window(batches=attempt.window.batches, calls=attempt.window.calls)
        size = _size(window)
        if size is None:
            size = MOST_BYTES + 1
        self._kept.append(PastStep(number, window, rng, tuple(attempt.rates), size))
        self._bytes += size
        while len(self._kept) > 1 and (len(self._kept) > MOST_STEPS or self._bytes > MOST_BYTES):
            self._dropped = self._kept[0].number
            self._bytes -= self._kept.popleft().nbytes

    def forget_before(self, number: int) -> None:
        """A newer good copy was taken: what came before it is of no use, except the newest."""
        while len(self._kept) > 1 and self._kept[0].number < number:
            self._bytes -= self._kept.popleft().nbytes

    @property
    def newest(self) -> Window | None:
        return self._kept[-1].window if self._kept else None

    def since(self, number: int) -> list[PastStep] | None:
        """All applied steps from this number on; None if some of them are no longer here."""
        found = [step for step in self._kept if step.number >= number]
        return found if found and self._dropped < number else None


def _size(window: Window) -> int | None:
    """The bytes of its tensors; None if one of them is on a device, whose memory is not ours to hold."""
    held = [call.args for call in window.calls], [getattr(call.fn, "args", ()) for call in window.calls]
    tensors = [one for one in tree_leaves((window.batches, *held)) if isinstance(one, Tensor)]
    if any(one.device.type != "cpu" for one in tensors):
        return None
    return sum(one.numel() * one.element_size() for one in {id(one): one for one in tensors}.values())
