"""TOML: values by tomllib, places by a look at the lines (tomllib keeps none)."""

from __future__ import annotations

import re
from typing import Any

from stayfinite.findings.subjects.config_file import Entry
from stayfinite.readers.config.nodes import DEEPEST, Collected, UnreadableConfig

_HEADER = re.compile(r"\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=\s*(.*)""")
_PART = re.compile(r"""[\w-]+|"([^"]*)"|'([^']*)'""")


def read(text: str, file: str) -> Collected:
    try:
        import tomllib
    except ModuleNotFoundError as missing:
        raise UnreadableConfig(f"{file}: reading TOML needs Python 3.11 or later") from missing
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as trouble:
        raise UnreadableConfig(f"{file}: not valid TOML ({trouble})") from trouble
    found = Collected(file)
    _table(data, (), found, _places(text))
    return found


Place = tuple[int, int, int, int, str]  # line, column, value line, value column, value text


def _places(text: str) -> dict[tuple[str, ...], Place]:
    places: dict[tuple[str, ...], Place] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line.partition("#")[0].rstrip())
        if header is not None:
            table = _parts(header.group(1))
            places.setdefault(table, (number, line.index("[") + 1, number, 1, ""))
            continue
        pair = _KEY.match(line)
        if pair is not None:
            raw = re.split(r"\s+#", pair.group(2), maxsplit=1)[0].strip()
            places.setdefault(
                (*table, *_parts(pair.group(1))), (number, pair.start(1) + 1, number, pair.start(2) + 1, raw)
            )
    return places


def _parts(text: str) -> tuple[str, ...]:
    return tuple(match.group(1) or match.group(2) or match.group(0) for match in _PART.finditer(text))


def _table(
    data: dict[str, Any], path: tuple[str, ...], found: Collected, places: dict[tuple[str, ...], Place]
) -> None:
    if len(path) > DEEPEST:
        return
    for key, value in data.items():
        inner = (*path, key)
        line, column, value_line, value_column, raw = (
            places.get(inner) or places.get(path) or (1, 1, 1, 1, "")
        )
        tables = (
            [value] if isinstance(value, dict) else [v for v in value if isinstance(v, dict)]
            if isinstance(value, list) else []
        )  # fmt: skip
        section = isinstance(value, dict)
        quoted = raw.startswith(('"', "'"))
        found.add(
            Entry(
                inner, None if section else value, line, column, found.file, value_line, value_column,
                raw.strip("\"'"), quoted, section,
            )
        )  # fmt: skip
        for table in tables:
            _table(table, inner, found, places)
