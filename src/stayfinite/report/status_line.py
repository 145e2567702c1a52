"""A line on stderr that says what runs now; only on a terminal, redrawn at most ten times a second."""

from __future__ import annotations

import sys
import time

_PATIENCE = 1.0
_REDRAW = 0.1


class _StatusLine:
    """One line, drawn over and over, and wiped away at the end."""

    def __init__(self, *, shown: bool = True, patience: float = 0.0) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._start = time.monotonic()
        self._next = self._start + patience
        self._drawn = False

    def __exit__(self, *exception: object) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _is_due(self) -> bool:
        return self._shown and time.monotonic() >= self._next

    def _draw(self, text: str) -> None:
        self._drawn, self._next = True, time.monotonic() + _REDRAW
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


class FileProgress(_StatusLine):
    """Counts files and names the one at hand; appears after a second."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(shown=not quiet, patience=_PATIENCE)
        self._count = 0

    def __enter__(self) -> FileProgress:
        return self

    def advance(self, name: str) -> None:
        """One file more."""
        self._count += 1
        if self._is_due():
            shown = "".join(letter if letter.isprintable() else "?" for letter in name)[-70:]
            self._draw(f"{self._count} files, {shown}")


class PartProgress(_StatusLine):
    """Names what runs now and for how long all of it has run."""

    def __enter__(self) -> PartProgress:
        return self

    def show(self, part: str) -> None:
        if self._is_due():
            self._draw(f"{time.monotonic() - self._start:4.0f} s  {part[:80]}")
