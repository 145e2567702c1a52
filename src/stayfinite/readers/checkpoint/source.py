"""Source: bytes that can be read at any position. Nothing here allocates what a file merely claims."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, BinaryIO, Protocol


class Unreadable(Exception):
    """A file that cannot be read as a checkpoint; the text says what, where and what to do."""


class Source(Protocol):
    """Where a checkpoint's bytes come from: a file, a part of a file, or a remote object."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; returns how many bytes there were. Safe to call from threads."""
        ...


class FileSource:
    """A local file. Positions are passed to the system call, so threads can share it. Closed when forgotten."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        self._lock = threading.Lock()

    def read_into(self, offset: int, buffer: memoryview) -> int:
        done = self._read(offset, buffer)
        while 0 < done < len(buffer):
            count = self._read(offset + done, buffer[done:])
            if count == 0:
                break
            done += count
        return done

    def _read(self, offset: int, buffer: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [buffer], offset)
        with self._lock:
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            piece = os.read(self._descriptor, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


class HandleSource:
    """Any seekable file object: an fsspec file, or a temporary file. One reader at a time."""

    def __init__(self, handle: BinaryIO | Any, name: str) -> None:
        self.name = name
        self._handle = handle
        self._close = weakref.finalize(self, handle.close)
        self._lock = threading.Lock()
        handle.seek(0, os.SEEK_END)
        self.size = int(handle.tell())

    def read_into(self, offset: int, buffer: memoryview) -> int:
        done = 0
        with self._lock:
            self._handle.seek(offset)
            while done < len(buffer):
                piece = self._handle.read(len(buffer) - done)
                if not piece:
                    break
                buffer[done : done + len(piece)] = piece
                done += len(piece)
        return done


class WindowSource:
    """A part of another source, seen as a whole: a member of an archive, an item of a shard."""

    def __init__(self, inner: Source, start: int, size: int) -> None:
        if start < 0 or size < 0 or start + size > inner.size:
            raise Unreadable(
                f"{inner.name}: bytes {start} to {start + size} are promised but the file ends at {inner.size}; "
                "it was probably cut off while being written or copied"
            )
        self.name = inner.name
        self.size = size
        self.inner: Source = inner
        self.start: int = start
        if isinstance(inner, WindowSource):
            self.inner, self.start = inner.inner, start + inner.start

    def read_into(self, offset: int, buffer: memoryview) -> int:
        room = max(0, min(len(buffer), self.size - offset))
        return self.inner.read_into(self.start + offset, buffer[:room])


class ReadAhead:
    """Small reads one after the other, by one system call for many: headers of archives with thousands of members."""

    _BLOCK = 1 << 16

    def __init__(self, source: Source) -> None:
        self._source = source
        self._start = 0
        self._block = b""

    def read(self, offset: int, count: int) -> bytes:
        """Exactly `count` bytes, as `read_bytes`."""
        at = offset - self._start
        if at < 0 or at + count > len(self._block):
            size = min(self._BLOCK, self._source.size - offset)
            if size < count or offset < 0:
                return read_bytes(self._source, offset, count)  # which says what is wrong
            self._start, self._block, at = offset, read_bytes(self._source, offset, size), 0
        return self._block[at : at + count]


def read_bytes(source: Source, offset: int, count: int, most: int = 256 << 20) -> bytes:
    """Exactly `count` bytes; refuses to allocate more than `most` or than the source can hold."""
    if count < 0 or offset < 0 or offset + count > source.size:
        raise Unreadable(
            f"{source.name}: {count} bytes are promised at {offset} but the data ends at {source.size}; "
            "the file is cut off or damaged"
        )
    if count > most:
        raise Unreadable(f"{source.name}: a header of {count} bytes is larger than any real one ({most})")
    buffer = bytearray(count)
    got = source.read_into(offset, memoryview(buffer))
    if got != count:
        raise Unreadable(f"{source.name}: only {got} of {count} bytes could be read at {offset}")
    return bytes(buffer)
