"""TensorBoard event files: TFRecords that hold protocol buffers; only the scalars are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from stayfinite.readers.log.block import Block, Record, Wanted, gather
from stayfinite.readers.log.protobuf import fields, float32, float64, signed
from stayfinite.readers.log.source import UnreadableLog

NAME = "TensorBoard events"
_LONGEST = 64 << 20
_FLOAT, _DOUBLE = 1, 2  # of the tensor types


def sniff(head: bytes, name: str) -> bool:
    """True where the first record says which version of events follows."""
    return ".tfevents." in name or b"brain.Event:" in head[:64]


class EventsReader:
    """One record of the log for each event that has scalars."""

    def __init__(self, wanted: Wanted) -> None:
        self._rest = b""
        self._events = 0

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        self._rest += data
        block = gather(self._records())
        return [block] if len(block) else []

    def _records(self) -> Iterator[Record]:
        """Each: 8 bytes of length, 4 of checksum, the event, 4 of checksum."""
        at = 0
        while at + 12 <= len(self._rest):
            (length,) = struct.unpack("<Q", self._rest[at : at + 8])
            if length > _LONGEST:
                raise UnreadableLog(
                    f"event {self._events + 1} should be {length} bytes long; the file is damaged there"
                )
            if at + 16 + length > len(self._rest):
                break
            self._events += 1
            try:
                record = self._event(self._rest[at + 12 : at + 12 + length])
            except ValueError as trouble:
                raise UnreadableLog(f"event {self._events} is damaged ({trouble})") from trouble
            if record is not None:
                yield record
            at += 16 + length
        self._rest = self._rest[at:]

    def _event(self, data: bytes) -> Record | None:
        step, numbers = 0, {}
        for number, value in fields(data):
            if number == 2 and isinstance(value, int):
                step = signed(value)
            elif number == 5 and isinstance(value, bytes):
                for kind, inner in fields(value):
                    if kind == 1 and isinstance(inner, bytes):
                        tag, scalar = _scalar(inner)
                        if scalar is not None:
                            numbers[tag] = scalar
        return Record(self._events, float(step), numbers) if numbers else None


def _scalar(data: bytes) -> tuple[str, float | None]:
    """A summary value: its tag, and its number where it is a scalar."""
    tag, scalar = "", None
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            scalar = float32(value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor(value)
    return tag, scalar


def _tensor(data: bytes) -> float | None:
    """The number of a tensor with one element, which is how TensorFlow 2 writes scalars."""
    dtype, content = 0, b""
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 2 and isinstance(value, bytes):
            if any(kind == 2 for kind, _ in fields(value)):  # it has dimensions
                return None
        elif number in (4, 5, 6) and isinstance(value, bytes):
            content = value
    if dtype == _FLOAT and len(content) == 4:
        return float32(content)
    return float64(content) if dtype == _DOUBLE and len(content) == 8 else None
