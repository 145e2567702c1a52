"""trainer_state.json of the Hugging Face Trainer (and any JSON file with a list of records): `log_history`."""

from __future__ import annotations

import json
import re
from typing import Any

from stayfinite.readers.log import json_lines
from stayfinite.readers.log.block import Block, Record, Wanted, gather
from stayfinite.readers.log.json_lines import record_of
from stayfinite.readers.log.source import UnreadableLog

NAME = "trainer_state.json"
_MOST = 256 << 20
_LISTS = ("log_history", "history", "logs", "metrics", "records")
_TOTALS = ("train_runtime", "total_flos")


def sniff(head: bytes, name: str) -> bool:
    """True for a .json file that is one document, not one object a line."""
    text = head.strip()
    if not name.endswith(".json") or text[:1] not in (b"{", b"["):
        return False
    first, _, rest = text.partition(b"\n")
    if rest.strip() or text[:1] == b"[":
        return not json_lines.sniff(first, name)
    return any(f'"{key}"'.encode() in first for key in _LISTS) or b"[" in first


class TrainerStateReader:
    """A document can only be read whole; it is small beside the run that wrote it."""

    def __init__(self, wanted: Wanted) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MOST:
            raise UnreadableLog(f"a JSON document of more than {_MOST >> 20} MB; write logs as JSON lines")
        return [self._read()] if last else []

    def _read(self) -> Block:
        text = b"".join(self._parts).decode("utf-8", "replace")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as trouble:
            raise UnreadableLog(f"not valid JSON ({trouble}); the file may be cut off") from trouble
        entries = _entries(document)
        if entries is None:
            raise UnreadableLog(
                "a JSON document without a list of records (looked for log_history, history...)"
            )
        lines = _line_numbers(text, len(entries))
        return gather(_records(entries, lines))


def _records(entries: list[Any], lines: list[int]) -> list[Record]:
    made: list[Record] = []
    for entry, line in zip(entries, lines, strict=True):
        # The entry at the end holds totals of the run under names of the steps' own numbers (train_loss).
        if isinstance(entry, dict) and not any(name in entry for name in _TOTALS):
            made.append(record_of(entry, line))
    return made


def _entries(document: Any) -> list[Any] | None:
    if isinstance(document, list):
        return document if any(isinstance(entry, dict) for entry in document) else None
    for key in _LISTS:
        if isinstance(document.get(key), list):
            found: list[Any] = document[key]
            return found
    # {"loss": [..], "val_loss": [..]}, as Keras and many notebooks write it.
    columns = {key: value for key, value in document.items() if isinstance(value, list) and value}
    if columns:
        longest = max(len(column) for column in columns.values())
        return [
            {key: column[row] for key, column in columns.items() if row < len(column)}
            for row in range(longest)
        ]
    return None


def _line_numbers(text: str, entries: int) -> list[int]:
    """The line on which each record starts, where the document is indented; else 1."""
    found: list[int] = []
    depth, line = 0, 1
    inside = min((text.find(f'"{key}"') for key in _LISTS if f'"{key}"' in text), default=-1)
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{}\]]|\n', text[max(inside, 0) :]):
        token = match.group()
        if token == "\n":
            line += 1
        elif token == "[" and not found and depth == 0:
            depth = 1
        elif token in "[{" and depth:
            if token == "{" and depth == 1:
                found.append(line)
            depth += 1
        elif token in "]}" and depth:
            depth -= 1
            if depth == 0:
                break
    before = text[: max(inside, 0)].count("\n")
    found = [number + before for number in found]
    return found if len(found) == entries else [1] * entries
