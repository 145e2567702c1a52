"""A line on stderr that names the part at hand; only on a terminal, redrawn at most ten times a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_REDRAW = 0.1


class PartProgress:
    """Names what runs now and for how long all of it has run."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._start = time.monotonic()
        self._last = 0.0

    def __enter__(self) -> PartProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def show(self, part: str) -> None:
        now = time.monotonic()
        if not self._shown or now - self._last < _REDRAW:
            return
        self._last = now
        sys.stderr.write(f"\r\x1b[2K{now - self._start:4.0f} s  {part[:80]}")
        sys.stderr.flush()
