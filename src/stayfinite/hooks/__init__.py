"""Listening to torch: the only package that replaces attributes of torch, its classes and its optimizers.

`listen(event, around)` hears one kind of event of the table (`hooks/table.py`); `listen_to(object, name, around)` one
method of one object. `around(original, *args, **kwargs)` stands around the real call and may answer in its place.
The attribute is replaced when the first listener comes and put back when the last one goes, in any order and from
any thread. A name that this version of torch does not have switches one capability off (`missing()` says which).
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

__all__ = [
    "FRAMEWORK_STEPS",
    "HOOKS",
    "Around",
    "Hook",
    "Listening",
    "imported",
    "listen",
    "listen_if_lost",
    "listen_to",
    "missing",
]
