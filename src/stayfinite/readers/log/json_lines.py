"""JSON lines: one object a line. Lines of one shape are read by a pattern made from the first of them.

A pattern finds the numbers of a megabyte in one call, about twice as fast as a JSON parser that builds every
object; any line that does not fit it goes through the parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stayfinite.readers.log.block import Block, Column, Record, Wanted, gather, number
from stayfinite.readers.log.json_shape import DEEPEST, MOST_SLOTS, TAGS, TEXTS, Shape, learn
from stayfinite.readers.log.lines import LineSplitter
from stayfinite.readers.log.names import STEP_NAMES

NAME = "JSON lines"

_MOST_NAMES = 2000


def sniff(head: bytes, name: str) -> bool:
    """True where the first line that is not empty is a JSON object."""
    for line in head.splitlines()[:5]:
        text = line.strip().removeprefix(b"\xef\xbb\xbf")
        if text:
            return (
                text[:1] == b"{"
                and text[-1:] == b"}"
                and _object(text.decode("utf-8", "replace")) is not None
            )
    return False


class JsonLinesReader:
    """Takes bytes as they come and gives blocks."""

    def __init__(self, wanted: Wanted) -> None:
        self._split = LineSplitter()
        self._wanted = wanted
        self._shape: Shape | None = None

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        text = self._split.feed(data, last)
        first = self._split.count(text)
        if not text:
            return []
        if self._shape is not None and text.endswith("\n"):
            rows = self._shape.pattern.findall(text)
            if len(rows) == self._split.line - first:
                return [self._shape.block(rows, range(first, self._split.line), range(len(rows)))]
        return [self._one_by_one(text, first)]

    def _one_by_one(self, text: str, first: int) -> Block:
        fitting: list[tuple[str, ...]] = []
        at: list[int] = []
        others: list[tuple[int, Record]] = []
        lines: list[int] = []
        unread = 0
        candidate = ""
        for offset, line in enumerate(text.split("\n")):
            if not line or line.isspace():
                continue
            match = self._shape.pattern.fullmatch(line + "\n") if self._shape is not None else None
            if match is not None:
                at.append(len(lines))
                fitting.append(match.groups())
                lines.append(first + offset)
                continue
            found = _object(line)
            if found is None:
                unread += 1
                continue
            candidate = line
            others.append((len(lines), record_of(found, first + offset)))
            lines.append(first + offset)
            if self._shape is None:
                self._shape = learn(line, self._wanted)
        shape = self._shape
        if len(others) > 2 * len(fitting) and candidate:
            self._shape = learn(candidate, self._wanted) or shape
        if shape is None or not fitting:
            return gather((record for _, record in others), unread)
        block = shape.block(fitting, lines, at)
        block.unread = unread
        _merge(block, others)
        return block


def _merge(block: Block, others: Sequence[tuple[int, Record]]) -> None:
    """Records that the pattern did not fit, into the block of those that it did."""
    steps = list(block.steps) if len(block.steps) else [math.nan] * len(block.lines)
    added: dict[str, list[tuple[int, float]]] = {}
    for row, record in others:
        if record.step is not None:
            steps[row] = record.step
        for name, value in record.numbers.items():
            added.setdefault(name, []).append((row, value))
        for name, text in record.texts.items():
            block.texts.setdefault(name, []).append((row, text))
        for name in record.nulls:
            block.nulls.setdefault(name, []).append(row)
    for name, pairs in added.items():
        column = block.columns.get(name)
        if column is not None:
            pairs = sorted([*pairs, *zip(column.rows, column.values, strict=True)], key=lambda pair: pair[0])
        block.columns[name] = Column([row for row, _ in pairs], [value for _, value in pairs])
    for texts in block.texts.values():
        texts.sort(key=lambda pair: pair[0])
    block.steps = steps if any(step == step for step in steps) else ()


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def record_of(found: Mapping[str, Any], line: int) -> Record:
    """The numbers of an object, nested names joined by dots; also {"tag": "loss", "value": 0.3, "step": 7}."""
    numbers: dict[str, float] = {}
    nulls: list[str] = []
    tag = next((found[key] for key in TAGS if isinstance(found.get(key), str)), None)
    if tag is not None and "value" in found:
        found = {
            **{key: value for key, value in found.items() if key not in (*TAGS, "value")},
            tag: found["value"],
        }
    _flatten(found, "", numbers, nulls, 0)
    step = next((numbers[name] for name in STEP_NAMES if name in numbers), None)
    texts = {name: found[name] for name in TEXTS if isinstance(found.get(name), str)}
    return Record(line, step, numbers, texts, tuple(nulls))


def _flatten(node: Any, name: str, numbers: dict[str, float], nulls: list[str], depth: int) -> None:
    if isinstance(node, bool) or len(numbers) > _MOST_NAMES:
        return
    if isinstance(node, (int, float)):
        try:
            numbers[name] = float(node)
        except OverflowError:  # an integer of hundreds of digits
            numbers[name] = math.inf if node > 0 else -math.inf
    elif isinstance(node, str):
        value = number(node) if len(node) < 32 else None
        if value is not None:
            numbers[name] = value
    elif node is None:
        nulls.append(name)
    elif isinstance(node, Mapping) and depth < DEEPEST:
        for key, inner in node.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), numbers, nulls, depth + 1)
    elif isinstance(node, list) and depth < DEEPEST:
        for index, inner in enumerate(node[:MOST_SLOTS]):
            _flatten(inner, name if len(node) == 1 else f"{name}.{index}", numbers, nulls, depth + 1)
