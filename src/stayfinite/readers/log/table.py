"""CSV and TSV with a line of names: Lightning's metrics.csv, CSV loggers, results.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence

from stayfinite.readers.log.block import Block, Column, Wanted, number
from stayfinite.readers.log.lines import LineSplitter
from stayfinite.readers.log.names import STEP_NAMES

NAME = "CSV"
_ENDINGS = (".csv", ".tsv")
_MOST_COLUMNS = 5000


def sniff(head: bytes, name: str) -> bool:
    """True for a .csv or .tsv, or where names stand over numbers, separated alike; never for NUL bytes."""
    if b"\0" in head and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return False
    if name.endswith(_ENDINGS):
        return True
    lines = head.decode("utf-8", "replace").splitlines()[:3]
    if len(lines) < 2:
        return False
    separator = _separator(lines[0])
    names, first = lines[0].split(separator), lines[1].split(separator)
    return (
        len(names) == len(first) > 1
        and all(name.strip() and number(name) is None for name in names)
        and all(not cell.strip() or number(cell) is not None for cell in first)
    )


def _separator(line: str) -> str:
    return max(("\t", ";", ","), key=line.count)


class TableReader:
    """An empty cell is no value; the cell "nan" is one."""

    def __init__(self, wanted: Wanted) -> None:
        self._split = LineSplitter()
        self._names: list[str] = []
        self._separator = ","

    def feed(self, data: bytes, last: bool = False) -> list[Block]:
        text = self._split.feed(data, last)
        line = self._split.count(text)
        if not text:
            return []
        rows: list[list[str]] = []
        lines: list[int] = []
        unread = 0
        for offset, one in enumerate(text.split("\n")):
            one = one.rstrip("\r")
            if not one.strip():
                continue
            if not self._names:
                self._separator = _separator(one)
                self._names = [name.strip() for name in self._cells(one)][:_MOST_COLUMNS]
                continue
            cells = self._cells(one)
            if [cell.strip() for cell in cells[: len(self._names)]] == self._names:
                continue  # a run that went on wrote the names again
            if len(cells) != len(self._names):
                unread += 1
                continue
            rows.append(cells)
            lines.append(line + offset)
        return [self._block(rows, lines, unread)] if rows or unread else []

    def _cells(self, line: str) -> list[str]:
        if '"' not in line:
            return line.split(self._separator)
        try:
            return next(csv.reader([line], delimiter=self._separator))
        except csv.Error:
            return []

    def _block(self, rows: Sequence[Sequence[str]], lines: Sequence[int], unread: int) -> Block:
        block = Block(lines, unread=unread)
        counting = next((name for name in STEP_NAMES if name in self._names), None)
        for name, cells in zip(self._names, zip(*rows, strict=True), strict=False):
            if not name:
                continue
            known = [
                (row, value) for row, cell in enumerate(cells) if cell and (value := number(cell)) is not None
            ]
            if name == counting:
                steps = [math.nan] * len(lines)
                for row, value in known:
                    steps[row] = value
                block.steps = steps
            elif known:
                block.columns[name] = Column([row for row, _ in known], [value for _, value in known])
        return block
