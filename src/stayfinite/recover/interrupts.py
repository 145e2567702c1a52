"""Ctrl-C waits until an update is whole: one that is torn in two cannot be undone without a copy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Signals that a Python function handles are handled when this is over, as they would have been."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[Callable[..., Any], int, FrameType | None]] = []
    held = {int(number): handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}

    def wait(number: int, frame: FrameType | None) -> None:
        came.append((held[number], number, frame))

    for number in held:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for handler, number, frame in came[:1]:
            handler(number, frame)
