"""Ctrl-C waits until a step is whole: applied or undone, never half of either."""

from __future__ import annotations

import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as handle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))
# The module behind `signal`, which turns every number and handler into an enum and back: that took four times as long
# as all the rest, several times a step.


class _HeldSignals:
    """Signals that a Python function handles, while they wait."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[..., Any]] = {}
        self._came: list[tuple[int, FrameType | None]] = []

    def hold(self) -> None:
        handlers = {number: getsignal(number) for number in _SIGNALS}
        self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
        for number in self._handlers:
            handle(number, self._wait)

    def _wait(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def let_go(self) -> None:
        """Handle the first that came, as it would have been handled."""
        try:
            self._put_back()
        except BaseException:  # a signal that comes now is handled at once, before the others are put back
            self._put_back()
            raise
        came, self._came = self._came, []
        for number, frame in came[:1]:
            self._handlers[number](number, frame)

    def _put_back(self) -> None:
        for number, handler in self._handlers.items():
            handle(number, handler)


_held: _HeldSignals | None = None  # by the main thread, which alone hears of signals


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Signals are handled when this is over; inside of another, when that one is."""
    global _held
    if _held is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    held = _held = _HeldSignals()
    try:
        held.hold()
        yield
    finally:
        _held = None
        held.let_go()


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Inside of `interrupts_wait`: for what may take long and can break off anywhere, such as the user's own code."""
    global _held
    held = _held
    if held is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    import torch

    _held, gradients_are_on = None, torch.is_grad_enabled()
    try:
        held.let_go()
        yield
    except BaseException:
        # Ctrl-C at the very begin of the exit of a `no_grad` leaves them off.
        torch._C._set_grad_enabled(gradients_are_on)
        raise
    finally:
        _held = held
        held.hold()
