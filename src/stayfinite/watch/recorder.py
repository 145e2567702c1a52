"""run.jsonl: one line a step, valid JSON, readable while the run writes it and after it crashed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from stayfinite.findings import Json, jsonable
from stayfinite.loggers.logger import Logger
from stayfinite.loggers.tensorboard import TensorBoardLogger

FLUSH_SECONDS = 1.0
"""What a crash can lose at most."""


class RunDirectoryError(OSError):
    """The run directory cannot be used; the message says what to do."""


class Recorder:
    """Appends to `run.jsonl` through a buffer of fixed size and hands the same numbers to any other listener."""

    def __init__(self, run_dir: Path | None, history: int = 20, listeners: Sequence[Any] = ()) -> None:
        """Without a folder nothing is written: the last lines are kept all the same."""
        self.path = (run_dir or Path()) / "run.jsonl"
        self.history: deque[dict[str, Json]] = deque(maxlen=history)
        self._listeners = [_as_listener(listener) for listener in listeners]
        self._flushed = time.monotonic()
        self._broken = run_dir is None
        try:
            self._file: TextIO = _open(self.path) if run_dir is not None else io.StringIO()
        except OSError as error:
            raise RunDirectoryError(
                f"stayfinite cannot write its record to {self.path}: {error.strerror or error}. "
                "Choose a writable directory with Guard(run_dir=...)."
            ) from error

    def write(self, line: dict[str, Any], *, now: bool = False) -> None:
        """Add one step; `now` makes it durable at once, as events should be."""
        plain = _plain(line)
        self.history.append(plain)
        for listener in self._listeners:
            listener(plain)
        self._append(plain, now=now)

    def event(self, line: dict[str, Any]) -> None:
        """Add a line that is no step; durable at once. Loggers hear of it, too."""
        plain = _plain(line)
        for logger in self._loggers():
            logger.event(plain)
        self._append(plain, now=True)

    def _loggers(self) -> list[Logger]:
        return [listener for listener in self._listeners if isinstance(listener, Logger)]

    def _append(self, plain: dict[str, Json], *, now: bool) -> None:
        if self._broken:
            return
        try:
            self._file.write(json.dumps(plain, allow_nan=False, separators=(",", ":")) + "\n")
            if now or time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._file.flush()
                self._flushed = time.monotonic()
                if not self.path.exists():
                    self._begin_again(plain)
        except (OSError, ValueError) as error:
            self._give_up(error)

    def flush(self) -> None:
        if self._broken or self._file.closed:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        for logger in self._loggers():
            logger.close()
        self.flush()
        if not self._broken:
            self._file.close()

    def _begin_again(self, line: dict[str, Json]) -> None:
        """Somebody removed or moved the run directory: what is written to the open file is lost to its readers."""
        self._file.close()
        self._file = _open(self.path)
        self._file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
        self._file.flush()
        warnings.warn(
            f"{self.path} was removed or moved while the run wrote it; the record starts anew there. "
            "Leave the run directory in place until the run has ended.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _give_up(self, error: Exception) -> None:
        """A full disk or a closed file must not end a training: say so once and go on without a record."""
        self._broken = True
        with contextlib.suppress(OSError):
            self._file.close()  # it tries once more to write what it holds, and fails for the reason given here
        reason = getattr(error, "strerror", None) or error
        warnings.warn(
            f"stayfinite can no longer write {self.path}: {reason}. The training goes on and stays guarded, "
            "but its steps are not recorded; free space or make the directory writable and start a new Guard.",
            RuntimeWarning,
            stacklevel=2,
        )


def _open(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a", encoding="utf-8", buffering=1 << 16)
    _end_partial_line(path, file)
    return file


def _plain(line: dict[str, Any]) -> dict[str, Json]:
    return {key: jsonable(value) for key, value in line.items()}


def _end_partial_line(path: Path, file: TextIO) -> None:
    """A run that was killed may have left half a line; the next line must not be glued to it."""
    if path.stat().st_size == 0:
        return
    with path.open("rb") as existing:
        existing.seek(-1, os.SEEK_END)
        if existing.read(1) != b"\n":
            file.write("\n")


def _as_listener(listener: Any) -> Callable[[dict[str, Json]], None]:
    """A callable takes each line as a dict; a TensorBoard writer gets its numbers through add_scalar."""
    if hasattr(listener, "add_scalar"):
        return TensorBoardLogger(listener)
    if callable(listener):
        hand_over: Callable[[dict[str, Json]], None] = listener
        return hand_over
    raise TypeError(
        "Guard(listeners=[...]) takes callables, stayfinite.loggers or TensorBoard writers; "
        f"got a {type(listener).__name__}"
    )
