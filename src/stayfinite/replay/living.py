"""Objects in memory by their type: models that nobody told us of, tensors that a script left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, groupby, starmap
from typing import Any

import torch

_seen: list[Any] | None = None


def living_models() -> list[torch.nn.Module]:
    """Every module in memory that is not part of another one."""
    modules = living((torch.nn.Module,))
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


@contextmanager
def looked_once() -> Iterator[None]:
    """While many look for models and tensors in a program that stands still, all objects are gone through once."""
    global _seen
    _seen = _look((torch.nn.Module, torch.Tensor))
    try:
        yield
    finally:
        _seen = None


def living(kinds: tuple[type, ...]) -> list[Any]:
    """Every object in memory of these types, or of types made from them; of models and tensors see `looked_once`."""
    if _seen is not None and all(issubclass(kind, (torch.nn.Module, torch.Tensor)) for kind in kinds):
        return [thing for thing in _seen if issubclass(type(thing), kinds)]
    return _look(kinds)


def _look(kinds: tuple[type, ...]) -> list[Any]:
    """Go through all objects.

    As long as a list of all objects exists, a tuple that another thread is just making has one owner too many, and
    python stops that thread with a SystemError. So the list is made, read and dropped by compiled code alone, between
    two moments at which python may change threads, and no garbage is collected meanwhile: that calls finalizers. Types
    are compared, not asked: a lazy proxy may compute when it is asked for its class. (Where a metaclass has an `__eq__`
    of its own, python still runs that.)
    """
    wanted = frozenset(chain.from_iterable(map(_made_from, kinds)))
    collects = gc.isenabled()
    try:
        gc.disable()
        present: set[type] = set(map(type, _everything()))
        nothing: dict[type, Iterable[Any]] = dict.fromkeys(present - wanted, ())
        # nothing.get(kind, things): the things of a wanted kind, and of one that came into being since
        either: Callable[[type, Iterable[Any]], Iterable[Any]] = nothing.get
        found = list(chain.from_iterable(starmap(either, groupby(_everything(), type))))
    finally:
        if collects:
            gc.enable()
    return [thing for thing in found if type(thing) in wanted]


def _everything() -> Iterator[Any]:
    """All objects; the list of them exists from the first that is asked for to the last."""
    return chain(chain.from_iterable(starmap(gc.get_objects, [()])), [None])


def _made_from(kind: type) -> Iterable[type]:
    found, new = {kind}, [kind]
    derived: Callable[[type], list[type]] = type.__subclasses__
    while new:
        new = [made for one in new for made in derived(one) if made not in found]
        found.update(new)
    return found
