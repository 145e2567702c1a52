"""The lines around the one that failed. A file is quoted only if it still says what the incident recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_AROUND = 4
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class SourceLine:
    number: int | None
    text: str
    marked: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines, one of them marked; `note` says why there are not more."""

    lines: tuple[SourceLine, ...]
    note: str | None = None


def excerpt(file: str, line: int | None, recorded: str) -> Excerpt | None:
    """The line in its surroundings; the recorded line alone where the file is gone or was changed since.

    An incident may come from elsewhere, so the file it names is compared before anything of it is shown.
    """
    if not recorded.strip():
        return None
    alone = (SourceLine(line, recorded.strip("\n"), True),)
    if line is None or not file:
        return Excerpt(alone)
    text = _lines(Path(file))
    if text is None:
        return Excerpt(alone, "The file is not on this machine; this is the line as it was recorded.")
    if not 1 <= line <= len(text) or text[line - 1].strip() != recorded.strip():
        return Excerpt(alone, "The file has changed since; this is the line as it was recorded.")
    first, last = max(1, line - _AROUND), min(len(text), line + _AROUND)
    return Excerpt(tuple(SourceLine(n, text[n - 1], n == line) for n in range(first, last + 1)))


def _lines(path: Path) -> list[str] | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):  # no such file, or no possible name of one
        return None
