"""Listening to torch: the only package that replaces attributes of torch, its classes and its optimizers.

`listen(event, around)` hears one kind of event of the table (`hooks/table.py`); `listen_to(object, name, around)` one
method of one object. `around(original, *args, **kwargs)` stands around the real call and may answer in its place.
The attribute is replaced when the first listener comes and put back when the last one goes, in any order and from
any thread. `listen_to_updates(before, after)` hears every update of every optimizer. A name that this version of torch
does not have switches one capability off (`missing()` says which).
"""

from __future__ import annotations

from stayfinite.hooks.point import Around, Listening
from stayfinite.hooks.table import (
    FRAMEWORK_STEPS,
    HOOKS,
    Hook,
    imported,
    listen,
    listen_if_lost,
    listen_to,
    missing,
)
from stayfinite.hooks.updates import UpdateListener, listen_to_updates

__all__ = [
    "FRAMEWORK_STEPS",
    "HOOKS",
    "Around",
    "Hook",
    "Listening",
    "UpdateListener",
    "imported",
    "listen",
    "listen_if_lost",
    "listen_to",
    "listen_to_updates",
    "missing",
]
