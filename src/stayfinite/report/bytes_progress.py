"""A progress bar with GB/s on stderr, for reading that takes longer than a second."""

from __future__ import annotations

import threading
import time

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stayfinite.report.terminal import console

_PATIENCE = 1.0


class BytesProgress:
    """Counts bytes from any thread; appears after a second, and only on a terminal."""

    def __init__(self, total: int, *, quiet: bool = False, what: str = "scanning") -> None:
        self._what = what
        self._total = total
        self._quiet = quiet
        self._lock = threading.Lock()
        self._done = 0
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> BytesProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, nbytes: int) -> None:
        """Some bytes more were read."""
        with self._lock:
            self._done += nbytes
            seconds = time.monotonic() - self._start
            if self._quiet or seconds < _PATIENCE:
                return
            if self._bar is None:
                self._bar = self._make()
                self._task = self._bar.add_task(self._what, total=self._total, speed="")
            if self._task is not None:
                speed = f"{self._done / seconds / 1e9:.2f} GB/s"
                self._bar.update(self._task, completed=min(self._done, self._total), speed=speed)

    def _make(self) -> Progress:
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(), console=console(stderr=True), transient=True,
        )  # fmt: skip
        bar.start()
        return bar

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
