"""Where a log's bytes come from: a file (also gzip), read from the start in pieces."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

PIECE = 1 << 20


class UnreadableLog(Exception):
    """A file that cannot be read as a log; the text says why and what to do."""


def open_log(path: str) -> BinaryIO:
    """The bytes of the log, unpacked where it is a gzip file."""
    try:
        if Path(path).is_fifo():  # opening it would wait for a writer, perhaps for ever
            raise UnreadableLog(f"{path}: a pipe cannot be read twice; write it to a file first")
        handle = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    except OSError as trouble:
        raise UnreadableLog(f"{path}: cannot be opened ({trouble.strerror or trouble})") from trouble
    try:
        start: bytes | None = handle.read(2)
        if start is None:
            handle.close()
            raise UnreadableLog(
                f"{path}: it gives no bytes without waiting for them; copy it to a file first"
            )
        if start == b"\x1f\x8b":
            handle.close()
            return cast(BinaryIO, gzip.open(path, "rb"))
        handle.seek(0)
    except OSError as trouble:
        handle.close()
        raise UnreadableLog(f"{path}: cannot be read ({trouble.strerror or trouble})") from trouble
    return handle


def _without_waiting(path: str, flags: int) -> int:
    """Ordinary files never wait; what looks like one and does (/proc/kmsg) says so instead."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def chunks(handle: BinaryIO, path: str) -> Iterator[bytes]:
    """Pieces of about a megabyte."""
    while True:
        try:
            data = handle.read(PIECE)
        except (OSError, EOFError, zlib.error) as trouble:
            raise UnreadableLog(
                f"{path}: cannot be read further ({trouble}); the file is cut off or damaged"
            ) from trouble
        if not data:
            return
        yield data
