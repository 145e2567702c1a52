"""Exact stable forms written into files: shown as a diff first; a file that changed meanwhile is left alone."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stayfinite.findings import Finding


@dataclass(frozen=True, slots=True)
class Change:
    """One file before and after."""

    path: Path
    before: bytes
    after: bytes
    count: int
    codes: tuple[str, ...]

    def diff(self) -> str:
        """A unified diff, as `patch -p1` takes it."""
        old, new = (text.decode("utf-8").splitlines(keepends=True) for text in (self.before, self.after))
        name = self.path.as_posix().lstrip("/")
        made = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made
        )


def changes(findings: Sequence[Finding]) -> list[Change]:
    """What --fix would do: the findings that carry an exact replacement, file by file."""
    by_file: dict[str, list[tuple[Finding, dict[str, Any]]]] = {}
    for finding in findings:
        edit = finding.evidence.get("edit")
        if isinstance(edit, dict) and finding.file is not None:
            by_file.setdefault(finding.file, []).append((finding, edit))
    made: list[Change] = []
    for file, edits in by_file.items():
        change = _change(Path(file), edits)
        if change is not None:
            made.append(change)
    return made


def _change(path: Path, edits: Sequence[tuple[Finding, dict[str, Any]]]) -> Change | None:
    try:
        before = path.read_bytes()
        before.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    lines = before.splitlines(keepends=True)
    used: list[tuple[int, int, int]] = []
    codes: list[str] = []
    # From the end backwards, so that earlier places stay where they are.
    for finding, edit in sorted(edits, key=lambda item: (item[1]["line"], item[1]["column"]), reverse=True):
        line, start = int(edit["line"]) - 1, int(edit["column"]) - 1
        old, new = str(edit["old"]).encode(), str(edit["new"]).encode()
        if not 0 <= line < len(lines) or lines[line][start : start + len(old)] != old:
            continue  # the text is not what was read
        end = start + len(old)
        if any(line == other and start < stop and begin < end for other, begin, stop in used):
            continue  # two fixes of one place: the first is enough, the next run does the rest
        lines[line] = lines[line][:start] + new + lines[line][end:]
        used.append((line, start, end))
        codes.append(finding.code)
    after = b"".join(lines)
    if after == before:
        return None
    return Change(path, before, after, len(codes), tuple(sorted(set(codes))))


def write(change: Change) -> str | None:
    """Write one change; None where it was done, else one sentence that says why not."""
    try:
        if change.path.read_bytes() != change.before:
            return f"{change.path}: the file changed meanwhile and is left as it is"
        real = Path(os.path.realpath(change.path))  # a link stays a link
        mode = real.stat().st_mode
        descriptor, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        try:
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(change.after)
                handle.flush()
                os.fsync(handle.fileno())
            Path(name).chmod(mode & 0o7777)
            Path(name).replace(real)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as trouble:
        return f"{change.path}: cannot be written ({trouble.strerror or trouble})"
    return None
