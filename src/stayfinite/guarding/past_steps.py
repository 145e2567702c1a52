"""PastSteps: the applied steps since the last good copy, as long as they are few and small, to be made again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from torch import Tensor, nn
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
        self._last: set[int] = set()  # tensors of the newest: what is there in every step costs nothing more
        self._dropped = -1  # the newest step that is no longer here though its copy may be

    def add(self, number: int, attempt: Attempt, rng: RngState | None) -> None:
        """The newest always stays: it is what a failing batch is compared with."""
        window = Window(batches=attempt.window.batches, calls=attempt.window.calls)
        held = _held(window)
        new = [tensor for key, tensor in held.items() if key not in self._last]
        self._last = set(held)
        size = sum(tensor.numel() * tensor.element_size() for tensor in new)
        if any(map(_cannot_be_kept, new)):
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
        """All applied steps from this number on; None if some are no longer here, or would compute another batch."""
        found = [step for step in self._kept if step.number >= number]
        late = any(call.changed_names() for step in found for call in step.window.calls)
        return found if found and self._dropped < number and not late else None


def _held(window: Window) -> dict[int, Tensor]:
    """The tensors that would live no longer if nobody kept the step: of batches, arguments, and what closures hold."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [window.batches]
    for call in window.calls:
        waiting += [
            call.args,
            call.names,
            getattr(call.fn, "args", ()),
            getattr(call.fn, "__defaults__", None),
        ]
    for leaf in tree_leaves(waiting):
        inner = [leaf]
        if not isinstance(leaf, (Tensor, nn.Module, type, ModuleType)) and hasattr(leaf, "__dict__"):
            inner = tree_leaves(list(vars(leaf).values()))  # a batch of a class of its own
        found.update({id(one): one for one in inner if isinstance(one, Tensor)})
    return found


def _cannot_be_kept(tensor: Tensor) -> bool:
    """On a device, whose memory is not ours to hold; or with the graph that made it."""
    return tensor.device.type != "cpu" or tensor.grad_fn is not None
