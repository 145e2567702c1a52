"""PastSteps: the applied steps since the last good copy, and a few before it, as long as they are few and small."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from stayfinite.guarding.attempt import Attempt
from stayfinite.recover.rng import RngState
from stayfinite.watch.watcher import Window

MOST_STEPS: Final = 128
MOST_BYTES: Final = 64 << 20
FURTHER: Final = 20
"""Steps after a failing one, on the batches of the last steps: those of the future are not known."""
_MOST_LOOKED_AT: Final = 1000
_NO_BATCH: Final = (str, bytes, int, float, type, FunctionType, ModuleType, nn.Module, Optimizer, type(None))


Stamp: TypeAlias = tuple[int, int]
"""Which copy of the state steps come after: how many were taken, and how often the run went back to one."""


@dataclass(frozen=True, slots=True)
class PastStep:
    """One applied step: its functions and batches, the random numbers before it, and its learning rates."""

    stamp: Stamp
    window: Window
    rng: RngState | None
    rates: tuple[float, ...]
    nbytes: int = 0
    # tensors that it was given, and how often they had been written into
    held: tuple[tuple[Tensor, int], ...] = ()

    def is_as_it_was(self) -> bool:
        """False where its functions see other names, or something was written into its batch, since."""
        written = any(tensor._version != version for tensor, version in self.held)
        return not written and not any(call.changed_names() for call in self.window.calls)


class PastSteps:
    """Holds on to batches that the script would have let go: at most so many, so large, and never on a device."""

    def __init__(self) -> None:
        self._kept: deque[PastStep] = deque()
        self._bytes = 0
        self._last: set[int] = set()  # what the newest was given: what is there in every step costs no more
        self._incomplete: Stamp | None = None  # of this copy some steps are no longer here

    def add(self, stamp: Stamp, attempt: Attempt, rng: RngState | None) -> None:
        """The newest always stays: it is what a failing batch is compared with."""
        window = Window(batches=attempt.window.batches, calls=attempt.window.calls)
        given = _given(window)
        new = _tensors([one for one in given if id(one) not in self._last])
        self._last = {id(one) for one in given}
        size = sum(tensor.numel() * tensor.element_size() for tensor in new or ())
        if new is None or any(map(_cannot_be_kept, new)):
            size = MOST_BYTES + 1
        held = tuple((one, one._version) for one in [*(new or ()), *_reused(given)] if not one.is_inference())
        self._kept.append(PastStep(stamp, window, rng, tuple(attempt.rates), size, held))
        self._bytes += size
        while len(self._kept) > FURTHER and self._kept[0].stamp != stamp:  # from before a newer copy
            self._drop()
        while len(self._kept) > 1 and (len(self._kept) > MOST_STEPS or self._bytes > MOST_BYTES):
            if self._kept[0].stamp == stamp:
                self._incomplete = stamp
            self._drop()

    def _drop(self) -> None:
        self._bytes -= self._kept.popleft().nbytes

    @property
    def newest(self) -> Window | None:
        return self._kept[-1].window if self._kept and self._kept[-1].is_as_it_was() else None

    def since(self, stamp: Stamp) -> list[PastStep] | None:
        """All applied steps after this copy; None if some are no longer here, or would compute another batch."""
        found = [step for step in self._kept if step.stamp == stamp]
        changed = not all(step.is_as_it_was() for step in found)
        return None if self._incomplete == stamp or changed else found

    def latest(self) -> list[PastStep]:
        """The last of them, whichever copy they come after: other batches than the failing one, to go on with."""
        return [step for step in list(self._kept)[-FURTHER:] if step.is_as_it_was()]


def _given(window: Window) -> list[Any]:
    """What a step holds on to: batches, arguments, and what its functions have bound."""
    found = list(window.batches)
    for call in window.calls:
        found += [*call.args, *call.names.values(), *getattr(call.fn, "args", ())]
        found += getattr(call.fn, "__defaults__", None) or ()
    return [one for one in found if not isinstance(one, _NO_BATCH)]


def _reused(given: Sequence[Any]) -> list[Tensor]:
    """Batches that may be the same objects in every step: into which a loop writes its next one."""
    plain = [one for one in given if isinstance(one, (Tensor, list, tuple, dict))]
    return _tensors(plain) or []


def _tensors(given: Sequence[Any]) -> list[Tensor] | None:
    """Those in it; an object of a class of its own is opened once. None if there is too much to look through."""
    found: list[Tensor] = []
    waiting = [(one, True) for one in given]
    seen = 0
    while waiting:
        one, may_open = waiting.pop()
        inner: Iterable[Any] = ()
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, _NO_BATCH):
            continue
        elif isinstance(one, Mapping):
            inner = one.values()
        elif isinstance(one, (list, tuple, set)):
            inner = one
        elif may_open and hasattr(one, "__dict__"):
            inner, may_open = vars(one).values(), False
        seen += 1 + (len(inner) if isinstance(inner, Sized) else 0)
        if seen > _MOST_LOOKED_AT:
            return None
        waiting += [(item, may_open) for item in inner]
    return found


def _cannot_be_kept(tensor: Tensor) -> bool:
    """On a device, whose memory is not ours to hold; or with the graph that made it."""
    return tensor.device.type != "cpu" or tensor.grad_fn is not None
