"""JSON with the place of every key: a small parser of its own, because json.loads forgets where things stood."""

from __future__ import annotations

import json
import re
from bisect import bisect_right

from stayfinite.findings.subjects.config_file import Entry
from stayfinite.readers.config.nodes import DEEPEST, Collected, UnreadableConfig

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)  # DeepSpeed files often have comments
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?(?:Infinity|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|true|false|null|NaN")


def read(text: str, file: str) -> Collected:
    return _Parser(text, file).parse()


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.position = 0
        self.found = Collected(file)
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def parse(self) -> Collected:
        self._space()
        self._value((), depth=0)
        self._space()
        if self.position < len(self.text):
            raise self._trouble("text after the end")
        return self.found

    def _trouble(self, what: str) -> UnreadableConfig:
        line, _ = self._place(min(self.position, len(self.text)))
        return UnreadableConfig(f"{self.file}:{line}: not valid JSON ({what})")

    def _place(self, position: int) -> tuple[int, int]:
        line = bisect_right(self.starts, position)
        return line, position - self.starts[line - 1] + 1

    def _space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def _value(self, path: tuple[str, ...], depth: int) -> object:
        if depth > DEEPEST:
            raise self._trouble("nested too deeply")
        letter = self.text[self.position : self.position + 1]
        if letter == "{":
            self._object(path, depth)
            return None
        if letter == "[":
            return self._list(path, depth)
        if letter == '"':
            return self._string()
        match = _SCALAR.match(self.text, self.position)
        if match is None:
            raise self._trouble("a value is missing" if letter else "the file ends early")
        self.position = match.end()
        try:
            return json.loads(match.group())
        except ValueError as trouble:
            raise self._trouble("a number is malformed") from trouble

    def _string(self) -> str:
        match = _STRING.match(self.text, self.position)
        if match is None:
            raise self._trouble("a text is not closed")
        self.position = match.end()
        try:
            return str(json.loads(match.group()))
        except ValueError as trouble:
            raise self._trouble("a text has a wrong escape") from trouble

    def _object(self, path: tuple[str, ...], depth: int) -> None:
        self.position += 1
        seen: set[str] = set()
        self._space()
        while self.text[self.position : self.position + 1] != "}":
            start = self.position
            if self.text[start : start + 1] != '"':
                raise self._trouble("a key is missing")
            key = self._string()
            self._space()
            if self.text[self.position : self.position + 1] != ":":
                raise self._trouble("a colon is missing")
            self.position += 1
            self._space()
            self._pair(path, key, start, seen, depth)
            self._space()
            if self.text[self.position : self.position + 1] == ",":
                self.position += 1
                self._space()
            elif self.text[self.position : self.position + 1] != "}":
                raise self._trouble("a comma is missing")
        self.position += 1

    def _pair(self, path: tuple[str, ...], key: str, start: int, seen: set[str], depth: int) -> None:
        value_start = self.position
        place = len(self.found.entries)
        line, column = self._place(start)
        value_line, value_column = self._place(value_start)
        section = self.text[value_start : value_start + 1] == "{"
        inner = (*path, key)
        self.found.add(Entry(inner, None, line, column, self.file, section=section))
        value = self._value(inner, depth + 1)
        raw = self.text[value_start : self.position] if not section else ""
        entry = Entry(
            inner, value, line, column, self.file, value_line, value_column, raw.strip('"')[:200],
            raw.startswith('"'), section,
        )  # fmt: skip
        self.found.entries[place] = entry
        if key in seen:
            self.found.duplicates.append(entry)
        seen.add(key)

    def _list(self, path: tuple[str, ...], depth: int) -> list[object]:
        self.position += 1
        values: list[object] = []
        self._space()
        while self.text[self.position : self.position + 1] != "]":
            value = self._value(path, depth + 1)
            if len(values) < 1000:
                values.append(value)
            self._space()
            if self.text[self.position : self.position + 1] == ",":
                self.position += 1
                self._space()
            elif self.text[self.position : self.position + 1] != "]":
                raise self._trouble("a comma is missing")
        self.position += 1
        return values
