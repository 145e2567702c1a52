"""CSV: one row a number, so that a run whose names change needs no second file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from stayfinite.loggers.logger import PREFIX, Logger


class CsvLogger(Logger):
    """Rows of step, name, value, text; appended to a file that is there already."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None
        self._rows: Any = None

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        rows = self._open()
        rows.writerows([step, name, repr(value), ""] for name, value in values.items())

    def happened(self, step: int, kind: str, text: str) -> None:
        self._open().writerow([step, f"{PREFIX}{kind}", 1, text])
        assert self._file is not None
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> Any:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = not self._path.exists() or not self._path.stat().st_size
            self._file = self._path.open("a", encoding="utf-8", newline="")
            self._rows = csv.writer(self._file)
            if new:
                self._rows.writerow(["step", "name", "value", "text"])
        return self._rows
