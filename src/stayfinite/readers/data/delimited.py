"""CSV and TSV tables of numbers: columns that are numbers are looked at, the others are passed over."""

from __future__ import annotations

import csv
import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from stayfinite.readers.data.array import StoredArray, StoredData, UnreadableData

if TYPE_CHECKING:
    import torch

ENDINGS = (".csv", ".tsv")
_ROWS = 4096
_LOOKED_AT = 200
_IDS = ("id", "ids", "name", "path", "file", "filename", "image", "image_id", "sample_id", "uuid", "key")
_MOST_IDS = 2_000_000
_LONGEST_LINE = 8 << 20


def read(path: str) -> StoredData:
    """One array with the columns that hold numbers."""
    try:
        head = _head(path)
    except OSError as trouble:
        raise UnreadableData(f"{path}: cannot be opened ({trouble.strerror or trouble})") from trouble
    except csv.Error as trouble:
        raise UnreadableData(f"{path}: not a table of separated values ({trouble})") from trouble
    if not head:
        raise UnreadableData(f"{path}: the file is empty")
    named = not all(_is_number(cell) or not cell.strip() for cell in head[0])
    names = [cell.strip() for cell in head[0]] if named else [str(index) for index in range(len(head[0]))]
    body = head[1:] if named else head
    numeric = [
        index for index in range(len(names)) if _is_numeric([row[index] for row in body if index < len(row)])
    ]
    data = StoredData(path, "tsv" if _delimiter(path) == "\t" else "csv", Path(path).stat().st_size)
    chosen = next((index for index, name in enumerate(names) if name.lower() in _IDS), None)
    columns = [names[index] for index in numeric if index != chosen or names[index].lower() != "id"]
    kept = [index for index in numeric if index != chosen or names[index].lower() != "id"]
    if not kept:
        raise UnreadableData(f"{path}: no column of this table holds numbers in nine of ten cells")
    data.arrays.append(
        StoredArray("table", "float64", (-1, len(kept)),
                    lambda begin, end: _blocks(path, named, kept, len(names), chosen, data), None, columns)
    )  # fmt: skip
    return data


def _delimiter(path: str) -> str:
    return "\t" if path.endswith(".tsv") else ","


def _open(path: str) -> TextIO:
    return Path(path).open(encoding="utf-8-sig", errors="replace", newline="")


def _reader(handle: TextIO, path: str) -> Iterator[list[str]]:
    csv.field_size_limit(_LONGEST_LINE)
    lines = _lines(handle)
    first = next(lines, "")
    mark = "\t" if path.endswith(".tsv") else max((",", ";", "\t"), key=first.count)
    return csv.reader(itertools.chain([first], lines), delimiter=mark)


def _lines(handle: TextIO) -> Iterator[str]:
    """Line by line, and no line without end: a sparse file is one of many gigabytes."""
    while line := handle.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise csv.Error(f"a line is longer than {_LONGEST_LINE >> 20} MB")
        yield line


def _head(path: str) -> list[list[str]]:
    with _open(path) as handle:
        return [row for row in itertools.islice(_reader(handle, path), _LOOKED_AT) if row]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_numeric(cells: Sequence[str]) -> bool:
    """Most cells are numbers; empty ones and words for "nothing" do not speak against it."""
    known = [
        cell
        for cell in cells
        if cell.strip() and cell.strip().lower() not in ("na", "n/a", "null", "none", "-")
    ]
    return bool(known) and sum(_is_number(cell) for cell in known) >= 0.9 * len(known)


def _value(cell: str) -> float:
    """An empty cell and a word are NaN, which is what they become in a tensor."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _blocks(
    path: str, named: bool, kept: Sequence[int], width: int, ids: int | None, data: StoredData
) -> Iterator[tuple[int, torch.Tensor]]:
    import torch

    first, bent = 0, 0
    naming = ids is not None and not data.ids  # a second pass finds them there
    with _open(path) as handle:
        reader = _reader(handle, path)
        if named:
            next(reader)
        while True:
            values, rows = array("d"), 0
            try:
                for row in itertools.islice(reader, _ROWS):
                    if not row:
                        continue
                    if len(row) != width:
                        bent += 1
                        continue
                    try:
                        values.extend([float(row[index]) for index in kept])
                    except ValueError:
                        del values[rows * len(kept) :]
                        values.extend([_value(row[index]) for index in kept])
                    rows += 1
                    if naming and ids is not None and len(data.ids) < _MOST_IDS:
                        data.ids.append(row[ids])
            except csv.Error as trouble:
                data.problems.append((path, f"row {first + rows}: {trouble}"))
                break
            if not rows:
                break
            yield first, torch.frombuffer(values, dtype=torch.float64).view(rows, len(kept))
            first += rows
    problem = (path, f"{bent} rows do not have {width} cells like the first; they were passed over")
    if bent and problem not in data.problems:
        data.problems.append(problem)
