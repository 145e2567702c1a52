"""What a drilled process tells, line by line, so that nothing is lost when it dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Lines of JSON, each written at once: to a file, or to a pipe that no limit on the size of files concerns."""

    def __init__(self, file: Path | int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = file if isinstance(file, int) else os.open(file, flags, 0o600)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines of the file."""
    return parse(path.read_text(encoding="utf-8") if path.exists() else "")


def parse(text: str) -> list[dict[str, Any]]:
    """All whole lines; a process that was killed may have left half of one."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
