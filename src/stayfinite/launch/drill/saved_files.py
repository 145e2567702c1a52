"""What is left on disk after a process was killed while it saved: which checkpoint is torn, and which is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stayfinite.checkpoint.verify import verify


def look(lines: list[dict[str, Any]], *, renames: bool = False) -> dict[str, Any]:
    """From the journal of the killed process and the files as they are now.

    `renames`: another run of the same script was seen to rename a file after saving it.
    """
    saves = {line["save"]: line for line in lines if "path" in line}
    killing = next((line for line in reversed(lines) if "killing" in line), None)
    moved = [line for line in lines if "rename" in line]
    written = _written(saves, lines, killing["killing"]) if killing else None
    names = [name for save in saves if (name := _written(saves, lines, save)) is not None]
    sources = {line["rename"][0] for line in moved}
    kept = {line["rename"][1] for line in moved} | {name for name in names if name not in sources}
    temporary = renames or bool(sources & set(names))
    if written is not None and temporary:
        kept.discard(written)
    found = [_state(name) for name in sorted(kept) if Path(name).is_file()]
    return {
        "written": written,
        "torn": _state(written) if written is not None and Path(written).is_file() else None,
        "temporary": temporary,
        "kept": sorted(found, key=lambda one: one["time"]),
        "bytes": killing["at"] if killing else None,
    }


def renamed(lines: list[dict[str, Any]]) -> bool:
    """A file that was saved got another name afterwards."""
    saves = {line["save"]: line for line in lines if "path" in line}
    names = {_written(saves, lines, save) for save in saves}
    return any("rename" in line and line["rename"][0] in names for line in lines)


def _written(saves: dict[int, dict[str, Any]], lines: list[dict[str, Any]], number: int) -> str | None:
    """The file of this save: as named to it, or the one that was opened while its bytes were at hand."""
    named = saves.get(number, {}).get("path")
    if isinstance(named, str):
        return named
    opened = [line["opened"] for line in lines if "opened" in line and line["save"] == number]
    moved = {line["rename"][0] for line in lines if "rename" in line and line["save"] == number}
    at = next((line["at"] for line in reversed(lines) if line.get("killing") == number), 0)
    likely = [name for name in opened if name in moved] or [name for name in opened if _size(name) >= at]
    return (likely or opened)[-1] if opened else None


def _size(name: str) -> int:
    """Of a file that may be gone."""
    try:
        return Path(name).stat().st_size
    except OSError:
        return -1


def _state(name: str) -> dict[str, Any]:
    verdict = verify(name)
    problems = [problem.message for problem in verdict.checkpoint.problems]
    status = Path(name).stat()
    return {
        "path": name,
        "size": status.st_size,
        "time": status.st_mtime_ns,
        "whole": verdict.unreadable is None and not problems,
        "problem": (problems or [""])[0],
    }
