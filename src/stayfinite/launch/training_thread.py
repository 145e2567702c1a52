"""TrainingThread: the one thread whose training is watched. What other threads train meanwhile is left alone."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from torch.optim import Optimizer

from stayfinite.observers.ownership import Ownership

_OF_ALL_THREADS = frozenset({"batch", "file_load", "file_save", "spawn", "warning"})
"""Batches are fetched ahead and files are written in threads of their own."""


class TrainingThread(Ownership):
    """Whoever trains first, until that thread is over. Before that, everything in the process is heard."""

    def __init__(self) -> None:
        self._holder: threading.Thread | None = None
        self._lock = threading.Lock()
        self.others_train = False  # another thread has made an update that nobody looked at
        self._made_in: weakref.WeakKeyDictionary[Optimizer, weakref.ref[threading.Thread]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def is_this(self) -> bool:
        """Or nobody trains yet."""
        holder = self._holder
        if holder is None or holder is threading.current_thread():
            return True
        return not holder.is_alive() and self.claim()

    def claim(self) -> bool:
        """This thread trains, unless another one does."""
        with self._lock:
            holder, here = self._holder, threading.current_thread()
            if holder is not None and holder is not here and holder.is_alive():
                return False
            self._holder = here
            return True

    def made(self, optimizer: Optimizer) -> None:
        self._made_in[optimizer] = weakref.ref(threading.current_thread())

    def may_train(self, optimizer: Optimizer) -> bool:
        """Not one that another thread has made for itself, by what can be told."""
        made_in = self._made_in.get(optimizer)
        thread = made_in() if made_in is not None else None
        return (
            thread is None
            or thread in (threading.current_thread(), threading.main_thread())
            or not thread.is_alive()
        )

    def of_optimizer(self, optimizer: Any) -> bool:
        if not self.is_this:
            self.others_train = True
        return self.is_this

    def of_event(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if event == "optimizer_made" and self.is_this:
            self.made(args[0])
        return event in _OF_ALL_THREADS or self.is_this
