"""A line on stderr that says how far a walk over files is; appears after a second, and only on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_PATIENCE = 1.0
_REDRAW = 0.1


class FileProgress:
    """Counts files and names the one at hand."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._count = 0
        self._drawn = False

    def __enter__(self) -> FileProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def advance(self, name: str) -> None:
        """One file more."""
        self._count += 1
        now = time.monotonic()
        if not self._shown or now - self._start < _PATIENCE or now - self._last < _REDRAW:
            return
        self._last = now
        self._drawn = True
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)[-70:]
        sys.stderr.write(f"\r\x1b[2K{self._count} files, {shown}")
        sys.stderr.flush()
