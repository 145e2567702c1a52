"""A log that is still being written: new records as they come, through rotation, truncation and half-written lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stayfinite.findings.subjects.log import Happening, Log
from stayfinite.logs.digest import Digest
from stayfinite.logs.examine import read_log
from stayfinite.readers.log import PIECE, Block, Reader, UnreadableLog, make_reader
from stayfinite.readers.log.trainer_state import NAME as DOCUMENT

POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class News:
    """What came since the last look: records, what happened in them, and the log up to now."""

    block: Block | None
    happenings: list[Happening]
    log: Log
    note: str = ""


class Follower:
    """Reads what is there, then waits for more. `idle` seconds without anything new end it."""

    def __init__(self, path: str, idle: float | None = None) -> None:
        self.path = path
        self._idle = idle
        self._digest: Digest | None = None
        self._reader: Reader | None = None
        self._file: tuple[int, int] | None = None
        self._position = 0
        self._changed = 0.0
        self._document = False

    def news(self) -> Iterator[News]:
        """Goes on until the log is idle for too long; Ctrl-C ends it from outside."""
        quiet_since = time.monotonic()
        while True:
            found = False
            for item in self._look():
                found = True
                yield item
            if found:
                quiet_since = time.monotonic()
            elif self._idle is not None and time.monotonic() - quiet_since > self._idle:
                yield from self._finish()
                return
            else:
                time.sleep(POLL_SECONDS)

    def _look(self) -> Iterator[News]:
        try:
            status = Path(self.path).stat()
        except FileNotFoundError:
            return  # not written yet, or between two files of a rotation
        identity = (status.st_dev, status.st_ino)
        if self._document:
            if status.st_mtime != self._changed:
                yield from self._read_again(status.st_mtime)
            return
        if self._file is not None and (identity != self._file or status.st_size < self._position):
            what = "was truncated" if identity == self._file else "was replaced"
            yield from self._finish()
            self._reader, self._position = None, 0
            self._file = identity
            if self._digest is not None:
                yield News(None, [], self._digest.log, f"{self.path} {what}; reading on from its start")
        self._file = identity
        while status.st_size > self._position:
            with Path(self.path).open("rb") as handle:
                handle.seek(self._position)
                data = handle.read(PIECE)
            if not data:
                return
            self._position += len(data)
            yield from self._take(data, status)

    def _take(self, data: bytes, status: os.stat_result) -> Iterator[News]:
        if self._reader is None:
            form, reader = make_reader(data, self.path)
            if form == DOCUMENT:
                self._document = True
                yield from self._read_again(status.st_mtime)
                return
            self._reader = reader
            self._digest = self._digest or Digest(self.path, form)
        yield from self._update(self._reader.feed(data))

    def _update(self, blocks: list[Block]) -> Iterator[News]:
        for block in blocks:
            if self._digest is not None and len(block):
                happened = self._digest.update(block)
                yield News(block, happened, self._digest.log)

    def _finish(self) -> Iterator[News]:
        """The line without an end that a finished or replaced file leaves."""
        if self._reader is not None:
            yield from self._update(self._reader.feed(b"", last=True))

    def _read_again(self, changed: float) -> Iterator[News]:
        """A JSON document is rewritten whole."""
        try:
            log = read_log(self.path)
        except UnreadableLog:
            return  # half written: the next look sees it whole
        self._changed = changed
        yield News(None, list(log.happenings), log)
