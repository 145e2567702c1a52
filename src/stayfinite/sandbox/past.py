"""Past: the files as they were at an earlier moment, to be put in place inside a sandbox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

_RIGHTS = 0o7777


@dataclass(frozen=True, slots=True)
class Earlier:
    """One path as it was: a file whose content is in `copy`, a link to `target`, or a folder."""

    path: str
    kind: Literal["file", "link", "folder"]
    mode: int = 0o644
    modified: int = 0  # nanoseconds
    copy: str = ""
    target: str = ""


@dataclass(slots=True)
class Past:
    """What was not there, and what was there in another form."""

    missing: list[str] = field(default_factory=list)
    earlier: list[Earlier] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"missing": self.missing, "earlier": [asdict(one) for one in self.earlier]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Past:
        return cls(list(data["missing"]), [Earlier(**one) for one in data["earlier"]])

    def put_in_place(self) -> list[str]:
        """Inside a sandbox: make it so. Gives the paths that could not be brought back."""
        failed = [path for path in sorted(self.missing, key=len, reverse=True) if not _remove(path)]
        folders = [one for one in self.earlier if one.kind == "folder"]
        for one in sorted(folders, key=lambda folder: len(folder.path)):
            if not _tried(lambda one=one: _make_folder(one)):
                failed.append(one.path)
        for one in self.earlier:
            if one.kind != "folder" and not _tried(lambda one=one: _put_back(one)):
                failed.append(one.path)
        for one in sorted(folders, key=lambda folder: len(folder.path), reverse=True):
            _tried(lambda one=one: os.utime(one.path, ns=(one.modified, one.modified)))
        return failed


def _tried(work: Any) -> bool:
    try:
        work()
    except OSError:
        return False
    return True


def _remove(path: str) -> bool:
    place = Path(path)

    def remove() -> None:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    return _tried(remove)


def _make_folder(one: Earlier) -> None:
    place = Path(one.path)
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        place.unlink()
    place.mkdir(exist_ok=True)
    place.chmod(one.mode & _RIGHTS)


def _put_back(one: Earlier) -> None:
    place = Path(one.path)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if one.kind == "link":
        place.symlink_to(one.target)
        return
    shutil.copyfile(one.copy, place)
    place.chmod(one.mode & _RIGHTS)
    os.utime(place, ns=(one.modified, one.modified))
