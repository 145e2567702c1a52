"""JSON lines: one object a line. Lines of one shape are read by a pattern made from the first of them.

A pattern finds the numbers of a megabyte in one call, three times as fast as a JSON parser that builds every
object; any line that does not fit it goes through the parser.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stayfinite.readers.log.block import Block, Column, Record, Wanted, gather, number
from stayfinite.readers.log.lines import LineSplitter
from stayfinite.readers.log.names import STEP_NAMES

NAME = "JSON lines"
TEXTS = ("action", "event")
"""Words of a stayfinite run.jsonl that are handed on."""

_TOKEN = re.compile(
    r'\s*("(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|NaN|-?Infinity|true|false|null|[{}\[\]:,])'
)
_SLOT = r'([^,{}\[\]"\s]+|"[^"\\\n]*")'
# The place of a metric: any value that is finite, or a word. Others do not fit, so the parser sees them.
_PASSED = r'(?:-?\d[-+.\deE]*|true|false|null|"(?!-?(?:[nN][aA][nN]|[iI][nN][fF])[^"]{0,6}")[^"\\\n]*")'
_MOST_SLOTS = 80
_DEEPEST = 6
_MOST_NAMES = 2000
_TAGS = ("tag", "name", "metric", "key")


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
        self._shape: _Shape | None = None

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
            others.append((len(lines), _record(found, first + offset)))
            lines.append(first + offset)
            if self._shape is None:
                self._shape = _learn(line, self._wanted)
        shape = self._shape
        if len(others) > 2 * len(fitting) and candidate:
            self._shape = _learn(candidate, self._wanted) or shape
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


class _Shape:
    """The form of a line: its pattern, and the names of the places in it whose values are asked for."""

    def __init__(self, pattern: re.Pattern[str], names: Sequence[str], step: str | None) -> None:
        self.pattern = pattern
        self.names = list(names)
        self.step = step

    def block(self, rows: Sequence[Any], lines: Sequence[int], at: Sequence[int]) -> Block:
        block = Block(lines)
        if len(self.names) == 1:  # findall gives texts then, not tuples
            columns = [tuple(row if isinstance(row, str) else row[0] for row in rows)]
        else:
            columns = list(zip(*rows, strict=True))
        for name, column in zip(self.names, columns, strict=True):
            if name == self.step:
                block.steps = _steps(column, at, len(lines))
            elif name in TEXTS:
                words = zip(at, column, strict=True)
                block.texts[name] = [(row, word[1:-1]) for row, word in words if word[:1] == '"']
            else:
                _add(block, name, column, at)
        return block


def _steps(column: Sequence[str], at: Sequence[int], rows: int) -> Sequence[float]:
    try:
        found: list[float] = list(map(int, column))
    except ValueError:
        known = [number(text.strip('"')) for text in column]
        found = [math.nan if value is None else value for value in known]
    if len(at) == rows:
        return found
    steps = [math.nan] * rows
    for row, step in zip(at, found, strict=True):
        steps[row] = step
    return steps


def _add(block: Block, name: str, column: Sequence[str], at: Sequence[int]) -> None:
    one = column[0]
    try:
        if one == column[-1] == column[len(column) // 2] and column.count(one) == len(column):
            block.columns[name] = Column(at, [float(one)] * len(column), constant=math.isfinite(float(one)))
        else:
            block.columns[name] = Column(at, list(map(float, column)))
        return
    except ValueError:
        pass  # an empty value or a word among them
    rows: list[int] = []
    values: list[float] = []
    for row, text in zip(at, column, strict=True):
        value = number(text.strip('"'))
        if value is not None:
            rows.append(row)
            values.append(value)
        elif text == "null":
            block.nulls.setdefault(name, []).append(row)
    if values:
        block.columns[name] = Column(rows, values)


def _learn(line: str, wanted: Wanted) -> _Shape | None:
    """The pattern of a line; None for lines that are too varied to have one."""
    parsed = _places(line.rstrip("\r"))
    if parsed is None:
        return None
    parts, places = parsed
    names = [_without_only_index(name, [other for other, _ in places]) for name, _ in places]
    if not names or (set(names) & set(_TAGS) and "value" in names):
        return None
    step = next((name for name in STEP_NAMES if name in names), None)
    taken: list[str] = []
    pattern = [r"^"]
    for index, part in enumerate(parts):
        pattern.append(re.escape(part))
        if index == len(places):
            break
        name, token = names[index], places[index][1]
        if name == step or name in TEXTS or wanted(name) or not re.fullmatch(_PASSED, token):
            taken.append(name)
            pattern.append(_SLOT)
        else:
            pattern.append(_PASSED)
    if not taken:
        return None
    return _Shape(re.compile("".join(pattern) + r"[ \r]*\n", re.MULTILINE), taken, step)


def _places(line: str) -> tuple[list[str], list[tuple[str, str]]] | None:
    """The fixed text of a line around its values, and each value's name and text."""
    parts: list[str] = [""]
    places: list[tuple[str, str]] = []
    stack: list[list[Any]] = []  # [kind, key or index, expects a key]
    at = 0
    while at < len(line):
        match = _TOKEN.match(line, at)
        if match is None:
            return None
        token, start = match.group(1), match.start(1)
        parts[-1] += line[at:start]
        at = match.end()
        if token in ("{", "["):
            stack.append([token, 0 if token == "[" else "", token == "{"])
        elif not stack:
            return None
        elif token in ("}", "]"):
            stack.pop()
        elif token == "," and stack[-1][0] == "[":
            stack[-1][1] += 1
        elif token in (",", ":"):
            stack[-1][2] = token == ","
        elif stack[-1][2]:
            stack[-1][1] = json.loads(token)
        else:
            name = _joined(stack)
            if (
                any(name == other for other, _ in places)
                or len(places) >= _MOST_SLOTS
                or len(stack) > _DEEPEST
            ):
                return None
            places.append((name, token))
            parts.append("")
            continue
        parts[-1] += token
        if not stack:
            break
    return None if stack or line[at:].strip() else (parts, places)


def _joined(stack: Sequence[Sequence[Any]]) -> str:
    return ".".join(str(level[1]) for level in stack)


def _without_only_index(name: str, names: Sequence[str]) -> str:
    """ "lr.0" is "lr" where there is no "lr.1"."""
    stem, dot, index = name.rpartition(".")
    return stem if dot and index == "0" and f"{stem}.1" not in names else name


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def record_of(found: Mapping[str, Any], line: int) -> Record:
    """The numbers of an object, nested names joined by dots; also {"tag": "loss", "value": 0.3, "step": 7}."""
    return _record(found, line)


def _record(found: Mapping[str, Any], line: int) -> Record:
    numbers: dict[str, float] = {}
    nulls: list[str] = []
    tag = next((found[key] for key in _TAGS if isinstance(found.get(key), str)), None)
    if tag is not None and "value" in found:
        found = {
            **{key: value for key, value in found.items() if key not in (*_TAGS, "value")},
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
    elif isinstance(node, Mapping) and depth < _DEEPEST:
        for key, inner in node.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), numbers, nulls, depth + 1)
    elif isinstance(node, list) and depth < _DEEPEST:
        for index, inner in enumerate(node[:_MOST_SLOTS]):
            _flatten(inner, name if len(node) == 1 else f"{name}.{index}", numbers, nulls, depth + 1)
