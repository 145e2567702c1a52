"""Replaces functions for the duration of a run and puts the originals back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """A list of replaced attributes, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace owner.name by a function that calls around(original, *args, **kwargs)."""
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        self._undo.append((owner, name, vars(owner).get(name), own))
        setattr(owner, name, replaced)

    def undo(self) -> None:
        """Put everything back."""
        for owner, name, original, own in reversed(self._undo):
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
        self._undo = []
