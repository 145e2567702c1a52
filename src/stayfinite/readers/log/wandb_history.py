"""The local history of W&B: run-*.wandb, records in 32 KB blocks that hold protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from stayfinite.readers.log.block import Block, Record, Wanted, gather
from stayfinite.readers.log.json_lines import record_of
from stayfinite.readers.log.protobuf import fields, float64, signed

NAME = "W&B history"
_HEAD = b":W&B"
_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY = 2  # the field of a record that holds a line of history


def sniff(head: bytes, name: str) -> bool:
    """True for the mark at the start of the file."""
    return head[:4] == _HEAD


class HistoryReader:
    """Goes through the blocks; a record that is cut off by the end of the file waits for the rest."""

    def __init__(self, wanted: Wanted) -> None:
        self._rest = b""
        self._at = 0  # the position in the file of the first byte of the rest
        self._parts: list[bytes] = []
        self._lines = 0

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        self._rest += data
        block = gather(self._records())
        return [block] if len(block) else []

    def _records(self) -> Iterator[Record]:
        for data in self._payloads():
            self._lines += 1
            try:
                record = self._history(data)
            except ValueError:
                continue  # not a record of history, or one this version writes otherwise
            if record is not None:
                yield record

    def _payloads(self) -> Iterator[bytes]:
        if self._at == 0:
            if len(self._rest) < 7:
                return
            self._skip(7)
        while True:
            room = _BLOCK - self._at % _BLOCK
            if room < 7:
                if len(self._rest) < room:
                    return
                self._skip(room)
                continue
            if len(self._rest) < 7:
                return
            _, size, kind = struct.unpack("<IHB", self._rest[:7])
            if kind not in (_FULL, _FIRST, _MIDDLE, _LAST):  # padding to the end of the block
                if len(self._rest) < room:
                    return
                self._skip(room)
                continue
            if len(self._rest) < 7 + size:
                return
            data = self._rest[7 : 7 + size]
            self._skip(7 + size)
            if kind == _FULL:
                yield data
            elif kind == _FIRST:
                self._parts = [data]
            else:
                self._parts.append(data)
                if kind == _LAST:
                    yield b"".join(self._parts)
                    self._parts = []

    def _skip(self, count: int) -> None:
        self._rest = self._rest[count:]
        self._at += count

    def _history(self, data: bytes) -> Record | None:
        found: dict[str, Any] = {}
        for number, value in fields(data):
            if number != _HISTORY or not isinstance(value, bytes):
                continue
            for kind, inner in fields(value):
                if kind == 1 and isinstance(inner, bytes):
                    name, item = _item(inner)
                    found[name] = item
                elif kind == 2 and isinstance(inner, bytes):
                    steps = [
                        signed(value)
                        for number, value in fields(inner)
                        if number == 1 and isinstance(value, int)
                    ]
                    found.setdefault("_step", steps[0] if steps else 0)
        return record_of(found, self._lines) if found else None


def _item(data: bytes) -> tuple[str, Any]:
    """Older versions write a value as JSON (field 16); newer ones by its type."""
    key = ""
    nested: list[str] = []
    value: Any = None
    for number, raw in fields(data):
        if isinstance(raw, int):
            value = bool(raw) if number == 4 else (raw >> 1) ^ -(raw & 1) if number == 5 else value
        elif number == 1:
            key = raw.decode("utf-8", "replace")
        elif number == 2:
            nested.append(raw.decode("utf-8", "replace"))
        elif number == 6:
            value = float64(raw)
        elif number in (8, 16):
            value = json.loads(raw)
    return key or ".".join(nested), value
