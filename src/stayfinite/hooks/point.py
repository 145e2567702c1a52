"""HookPoint: one attribute that is replaced for as long as somebody listens to it."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import MethodType
from typing import Any

from stayfinite.hooks.interrupts import interrupts_wait

Around = Callable[..., Any]
"""Called as around(original, *args, **kwargs) instead of the original; gives what the caller gets."""

LOCK = threading.RLock()


class Listening:
    """What is listened to; `stop` ends it. Stopping twice, or in another order than it began, is fine."""

    def __init__(self, stops: Iterable[Callable[[], None]] = ()) -> None:
        self._stops = list(stops)

    def add(self, other: Listening) -> None:
        """End the other one with this one."""
        self._stops.append(other.stop)

    def stop(self) -> None:
        try:
            with interrupts_wait():
                self._stop_all()
        except BaseException:
            self._stop_all()  # Ctrl-C came before it could be made to wait
            raise

    def _stop_all(self) -> None:
        while self._stops:
            self._stops.pop()()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


class _Layer:
    """One replacement of an attribute. When nobody listens any more it only passes on: somebody may have wrapped it."""

    def __init__(self, owner: Any, name: str, reference: Callable[[], Any]) -> None:
        self.name, self._owner = name, reference
        current = getattr(owner, name)
        self._own = vars(owner).get(name, _MISSING)
        method = isinstance(current, MethodType) and current.__self__ is owner
        # A bound method would keep its object alive in a cycle: it is bound anew at every call.
        self.original = _bound(reference, current.__func__) if method else current
        self.call = self.original
        self.replacement = self._make(current)
        setattr(owner, name, self.replacement)

    def _make(self, current: Any) -> Callable[..., Any]:
        function = getattr(current, "__func__", None)

        @functools.wraps(function or current)
        def heard(*args: Any, **kwargs: Any) -> Any:
            return self.call(*args, **kwargs)

        if function is not None:
            # A scheduler made now takes the function out of `optimizer.step` and binds it itself.
            def unbound(_: Any, *args: Any, **kwargs: Any) -> Any:
                return self.call(*args, **kwargs)

            heard.__func__ = functools.wraps(function)(unbound)  # type: ignore[attr-defined]
            heard.__signature__ = inspect.signature(current)  # type: ignore[attr-defined]
        return heard

    def put_back(self) -> None:
        """Only what is still ours: who has wrapped it meanwhile keeps it."""
        self.call = self.original
        owner = self._owner()
        if owner is None or vars(owner).get(self.name) is not self.replacement:
            return
        if self._own is _MISSING:
            delattr(owner, self.name)
        else:
            setattr(owner, self.name, self._own)


class HookPoint:
    """An attribute of a module, a class or an object, and those who listen to it, newest outermost."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = _reference(owner), name
        self._listeners: tuple[Around, ...] = ()
        self._layer: _Layer | None = None

    def listen(self, around: Around) -> Listening:
        with interrupts_wait(), LOCK:
            if self._layer is None:
                self._layer = _Layer(self._owner(), self._name, self._owner)
            self._listeners = (*self._listeners, around)
            self._chain(self._layer)
        return Listening([partial(self._leave, [around])])

    @property
    def is_lost(self) -> bool:
        """Somebody has put something else in the attribute's place since: its calls are not heard."""
        owner = self._owner()
        return self._layer is not None and vars(owner).get(self._name) is not self._layer.replacement

    def _leave(self, leaving: list[Around]) -> None:
        with interrupts_wait(), LOCK:
            if not leaving or self._layer is None:
                return
            kept = list(self._listeners)
            del kept[kept.index(leaving.pop())]
            self._listeners = tuple(kept)
            self._chain(self._layer)
            if not kept:
                self._layer.put_back()
                self._layer = None

    def _chain(self, layer: _Layer) -> None:
        call = layer.original
        for around in self._listeners:
            call = partial(around, call)
        layer.call = call


_MISSING = object()


def _reference(owner: Any) -> Callable[[], Any]:
    """Modules and classes stay; an object that is listened to may go."""
    if isinstance(owner, type) or type(owner).__name__ == "module":
        return lambda: owner
    return weakref.ref(owner)


def _bound(owner: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(owner(), *args, **kwargs)

    return call
