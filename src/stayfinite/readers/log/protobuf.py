"""The wire format of protocol buffers: just enough to walk through the fields of a message."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: integers as they are, fixed and long values as bytes. ValueError if damaged."""
    view = memoryview(data)
    at, end = 0, len(view)
    while at < end:
        key, at = _varint(view, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield number, value
            continue
        if kind == 1:
            size = 8
        elif kind == 5:
            size = 4
        elif kind == 2:
            size, at = _varint(view, at)
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > end:
            raise ValueError("a field reaches past the end of its message")
        yield number, bytes(view[at : at + size])
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(view) or shift > 63:
            raise ValueError("an integer without an end")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """A varint as the 64-bit integer it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def float32(data: bytes) -> float:
    return float(struct.unpack("<f", data)[0]) if len(data) == 4 else float("nan")


def float64(data: bytes) -> float:
    return float(struct.unpack("<d", data)[0]) if len(data) == 8 else float("nan")
