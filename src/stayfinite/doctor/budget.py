"""How long the doctor may look: seconds, spent on the most telling files first."""

from __future__ import annotations

import time

_SLOWEST = 100e6
"""Bytes a second that are expected before anything was read."""


class Budget:
    """Seconds that may be spent; 0 is no limit. Learns from what was read how long the next file will take."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start = time.monotonic()
        self._bytes = 0
        self._reading = 0.0
        self.stopped = False
        self.left_out: list[str] = []

    @property
    def left(self) -> float:
        if self.stopped:
            return 0.0
        return float("inf") if self._seconds <= 0 else self._seconds - (time.monotonic() - self._start)

    def allows(self, path: str, nbytes: int) -> bool:
        """Whether a file can be read in the time that is left; one that cannot is noted."""
        speed = self._bytes / self._reading if self._reading > 0.5 else _SLOWEST
        if self.left > 0 and nbytes / max(speed, 1.0) <= self.left:
            return True
        self.left_out.append(path)
        return False

    def spent(self, nbytes: int, seconds: float) -> None:
        """A file was read."""
        self._bytes += nbytes
        self._reading += seconds

    def stop(self) -> None:
        """The user has had enough: whatever is not read yet is left out."""
        self.stopped = True
