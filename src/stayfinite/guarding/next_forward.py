"""NextForward: the next forward pass of this thread, heard before it changes anything. Nothing is hooked otherwise."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from torch.nn.modules.module import register_module_forward_pre_hook

_OF_COMPILED_MODULES: Final = (
    "ignore",
    re.compile("Using `torch.compile\\(module\\)` when there are global hooks"),
    UserWarning,
    None,
    0,
)
"""torch warns whoever calls a compiled module while any hook waits: of this one nobody else is to hear."""


class NextForward:
    """Waits for one pass at a time. It holds on to nobody but while it waits: a guard must be able to go."""

    def __init__(self) -> None:
        self._hook: Any = None

    def wait(self, then: Callable[[], None]) -> None:
        """From now on; waiting twice is waiting once."""
        if self._hook is not None:
            return
        here = threading.get_ident()

        def heard(module: Any, args: Any) -> None:
            if threading.get_ident() == here:
                self.stop()
                then()

        warnings.filters.insert(0, _OF_COMPILED_MODULES)  # type: ignore[attr-defined]
        self._hook = register_module_forward_pre_hook(heard)

    def stop(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()
            with suppress(ValueError):  # somebody has set all filters anew
                warnings.filters.remove(_OF_COMPILED_MODULES)  # type: ignore[attr-defined]
