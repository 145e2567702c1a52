"""A patch in place: only where the file still has the lines that it changes, and with a backup."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_FILE = re.compile(r"^--- a/(.*)$", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@.*\n", re.MULTILINE)


class DoesNotApply(Exception):
    """The file has changed since the patch was made. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Patched:
    """One file with a patch in it."""

    file: Path
    before: str
    after: str
    has_carriage_returns: bool = False

    @property
    def backup(self) -> Path:
        return self.file.with_name(self.file.name + ".orig")

    def write(self) -> None:
        """Keep the file as it was beside it, and put the new one in its place."""
        if self.backup.exists() and self.backup.read_bytes() != self.file.read_bytes():
            raise DoesNotApply(
                f"{self.backup} is there already and is not the file as it is now: move it first"
            )
        shutil.copy2(self.file, self.backup)
        part = self.file.with_name(f".{self.file.name}.stayfinite")
        ends = "\r\n" if self.has_carriage_returns else "\n"
        part.write_bytes(self.after.replace("\n", ends).encode())
        shutil.copymode(self.file, part)
        part.replace(self.file)

    def take_back(self) -> None:
        """The file as it was."""
        self.backup.replace(self.file)


def apply(patch: str, script: Path | None = None) -> list[Patched]:
    """The files that a patch changes, with the change in them; nothing is written. `script` stands for the file."""
    parts = re.split(r"(?=^--- a/)", patch, flags=re.MULTILINE)
    found = []
    for part in parts:
        name = _FILE.search(part)
        if name is None:
            continue
        file = script or Path("/" + name.group(1))
        if file.suffix != ".py" and script is None:
            raise DoesNotApply(f"{file} is no Python source: a patch is made of nothing else")
        if not file.is_file():
            raise DoesNotApply(f"{file} is not there")
        raw = file.read_bytes().decode()
        before = raw.replace("\r\n", "\n")
        found.append(Patched(file, before, _changed(before, part, file), has_carriage_returns="\r\n" in raw))
    if not found:
        raise DoesNotApply("the incident has no patch")
    return found


def _changed(text: str, patch: str, file: Path) -> str:
    lines = text.splitlines(keepends=True)
    hunks = list(_HUNK.finditer(patch))
    for number in reversed(range(len(hunks))):
        hunk = hunks[number]
        end = hunks[number + 1].start() if number + 1 < len(hunks) else len(patch)
        body = [
            line for line in patch[hunk.end() : end].splitlines(keepends=True) if not line.startswith("\\")
        ]
        old = [line[1:] for line in body if line[0] in " -"]
        new = [line[1:] for line in body if line[0] in " +"]
        start = int(hunk.group(1)) - 1
        if not old or start < 0:
            raise DoesNotApply(f"the patch of {file} names no line that it changes")
        if [line.rstrip("\n") for line in lines[start : start + len(old)]] != [
            line.rstrip("\n") for line in old
        ]:
            raise DoesNotApply(f"{file} no longer has the lines that the patch changes (line {start + 1})")
        if lines[start + len(old) - 1 : start + len(old)] and not lines[start + len(old) - 1].endswith("\n"):
            new[-1] = new[-1].rstrip("\n")
        lines[start : start + len(old)] = new
    return "".join(lines)
