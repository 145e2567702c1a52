"""Updates of every optimizer, heard through torch's own global hooks, of which we hold one pair, whoever listens.

torch walks through its hooks while it calls them, and raises if they change meanwhile. Listeners come and go at any
moment (in a hook, in another thread, when the garbage collector finds a forgotten guard in the middle of a step), so
they stand in a tuple of ours, which is replaced and never changed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from stayfinite.hooks.interrupts import interrupts_wait
from stayfinite.hooks.point import LOCK, Listening

UpdateListener = Callable[[Any], object]
"""Called with the optimizer; what it returns is not used."""


class _Side:
    """All who are told before, or after, every update."""

    def __init__(self, register: str) -> None:
        self._register = register
        self._listeners: tuple[UpdateListener, ...] = ()
        self._handle: Any = None

    def listen(self, listener: UpdateListener) -> Listening:
        with interrupts_wait(), LOCK:
            self._listeners = (*self._listeners, listener)
            self._settle()
        return Listening([partial(self._leave, [listener])])

    def _leave(self, leaving: list[UpdateListener]) -> None:
        with interrupts_wait(), LOCK:
            if leaving:
                kept = list(self._listeners)
                del kept[kept.index(leaving.pop())]
                self._listeners = tuple(kept)
            self._settle()

    def _settle(self) -> None:
        """Registered while somebody listens. In the middle of an update that waits until somebody comes or goes."""
        if (self._handle is not None) == bool(self._listeners) or _updates_are_being_made():
            return
        if self._listeners:
            from torch.optim import optimizer

            self._handle = getattr(optimizer, self._register)(self._heard)
        else:
            self._handle.remove()
            self._handle = None

    def _heard(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for listener in self._listeners:
            listener(optimizer)


_BEFORE = _Side("register_optimizer_step_pre_hook")
_AFTER = _Side("register_optimizer_step_post_hook")


def listen_to_updates(before: UpdateListener | None = None, after: UpdateListener | None = None) -> Listening:
    """Hear of every `optimizer.step()` before and after it is made; one that raises has no end."""
    listening = Listening()
    try:
        with interrupts_wait():
            for side, listener in ((_BEFORE, before), (_AFTER, after)):
                if listener is not None:
                    listening.add(side.listen(listener))
    except BaseException:  # Ctrl-C has waited for this, and nobody will get to stop it
        listening.stop()
        raise
    return listening


def _updates_are_being_made() -> bool:
    """Whether any thread is inside of torch's walk through its hooks."""
    torch_optimizer = sys.modules.get("torch.optim.optimizer")
    if torch_optimizer is None:
        return False
    return any(_is_inside(frame, torch_optimizer.__file__) for frame in _frames())


def _frames() -> list[FrameType]:
    """Where every thread is. Up to Python 3.11 a collection in the middle of that waits for itself, for ever, if a
    `threading.local` is among the garbage (python/cpython#106883): so there is none."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return list(sys._current_frames().values())
    finally:
        if collects:
            gc.enable()


def _is_inside(frame: FrameType | None, file: str | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == file and frame.f_code.co_name == "wrapper":
            return True
        frame = frame.f_back
    return False
