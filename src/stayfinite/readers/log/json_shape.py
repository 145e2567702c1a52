"""Shape: the form that most lines of a JSON-lines log share, as a pattern that finds the numbers of a megabyte at once.

It is made from one line. Whatever does not fit it is left to the JSON parser.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from stayfinite.readers.log.block import Block, Column, Wanted, number
from stayfinite.readers.log.names import STEP_NAMES

_TOKEN = re.compile(
    r'\s*("(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|NaN|-?Infinity|true|false|null|[{}\[\]:,])'
)
_SLOT = r'([^,{}\[\]"\s]+|"[^"\\\n]*")'
# The place of a metric: any value that is finite, or a word. Others do not fit, so the parser sees them.
_PASSED = r'(?:-?\d[-+.\deE]*|true|false|null|"(?!-?(?:[nN][aA][nN]|[iI][nN][fF])[^"]{0,6}")[^"\\\n]*")'
MOST_SLOTS = 80
DEEPEST = 6
TAGS = ("tag", "name", "metric", "key")
TEXTS = ("action", "event")
"""Words of a stayfinite run.jsonl that are handed on."""


class Shape:
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


def learn(line: str, wanted: Wanted) -> Shape | None:
    """The pattern of a line; None for lines that are too varied to have one."""
    parsed = _places(line.rstrip("\r"))
    if parsed is None:
        return None
    parts, places = parsed
    names = [_without_only_index(name, [other for other, _ in places]) for name, _ in places]
    if not names or (set(names) & set(TAGS) and "value" in names):
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
    return Shape(re.compile("".join(pattern) + r"[ \r]*\n", re.MULTILINE), taken, step)


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
            if any(name == other for other, _ in places) or len(places) >= MOST_SLOTS or len(stack) > DEEPEST:
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
