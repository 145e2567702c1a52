"""ScratchFiles: what the script writes in a second run goes to a scratch folder; the files of the first stay.

The second run sees the disk as the first found it, as far as that can be had: what the first run made is hidden, so
that a script which resumes from the checkpoint it finds does not find the one that it wrote itself.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from stayfinite.launch.patches import Patches

_LEFT_ALONE = ("/dev", "/proc", "/sys")
_exists = os.path.exists
_stat = os.stat  # what is really there, whatever the script shall see


class Writing(Protocol):
    """Someone whom all that writes files goes through."""

    def opening(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any: ...

    def saving(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any: ...

    def making(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any: ...

    def moving(self, original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any: ...


def listen_to_writing(patches: Patches, files: Writing) -> None:
    """Bring every call that writes a file or makes a folder to `files`."""
    for owner in (builtins, io):
        patches.wrap(owner, "open", files.opening)
    patches.wrap(torch, "save", files.saving)
    patches.wrap(os, "mkdir", files.making)
    for name in ("replace", "rename"):
        patches.wrap(os, name, files.moving)


class MadeFiles:
    """In a first run: the files and folders that were not there before."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def install(self, patches: Patches) -> None:
        listen_to_writing(patches, self)

    def opening(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if writes(mode):
            self._note(file)
        return original(file, mode, *args, **kwargs)

    def saving(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(f)
        return original(obj, f, *args, **kwargs)

    def making(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(path)
        return original(path, *args, **kwargs)

    def moving(self, original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        self._note(dst)
        return original(src, dst, *args, **kwargs)

    def _note(self, file: Any) -> None:
        if is_path(file) and not _is_there(absolute(file)):
            self.paths.add(absolute(file))


class ScratchFiles:
    """A file that is written is written in the scratch folder, and from then on read from there."""

    def __init__(self, folder: Path, hidden: Iterable[str] = ()) -> None:
        self._folder = folder
        self._gone: set[str] = set(hidden)  # not there, as far as the script can see
        self._own: list[str] = []  # temporary folders of this run: nobody else's files are in them

    def install(self, patches: Patches) -> None:
        listen_to_writing(patches, self)
        for name in ("remove", "unlink"):
            patches.wrap(os, name, self._removing)
        for name in ("stat", "lstat"):
            patches.wrap(os, name, self._looking)
        patches.wrap(os, "listdir", self._listing)
        patches.wrap(os, "scandir", self._scanning)

    def opening(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not self._concerns(file):
            return original(file, mode, *args, **kwargs)
        if writes(mode):
            return original(self._written(file, keep="w" not in mode), mode, *args, **kwargs)
        return original(self._read(file), mode, *args, **kwargs)

    def saving(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return original(obj, self._written(f, keep=False) if self._concerns(f) else f, *args, **kwargs)

    def making(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        place = absolute(path)
        if place in self._gone:  # made by the first run, and now by this one
            self._gone.discard(place)
            return None
        original(path, *args, **kwargs)
        if place.startswith(absolute(tempfile.gettempdir()) + os.sep):
            self._own.append(place + os.sep)
        return None

    def moving(self, original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self._concerns(src) and self._concerns(dst)):
            return original(src, dst, *args, **kwargs)
        if Path(src).is_dir():
            return None  # a folder of the first run stays where it is
        source = self._written(src, keep=True)
        self._gone.add(absolute(src))
        return original(source, self._written(dst, keep=False), *args, **kwargs)

    def _removing(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._concerns(path) or kwargs.get("dir_fd") is not None:
            return original(path, *args, **kwargs)
        scratch = self._place(path)
        if _exists(scratch):
            original(scratch)
        elif absolute(path) in self._gone or not _is_there(absolute(path)):
            return original(scratch)  # says what is missing
        self._gone.add(absolute(path))
        return None

    def _looking(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._concerns(path) or kwargs.get("dir_fd") is not None:
            return original(path, *args, **kwargs)
        return original(self._read(path), *args, **kwargs)

    def _listing(self, original: Any, path: Any = ".") -> list[str]:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries]

    def _scanning(self, original: Any, path: Any = ".") -> Any:
        if not self._concerns(path):
            return original(path)
        scratch, found = self._place(path), {}
        if absolute(path) not in self._gone:
            with original(path) as entries:
                found = {e.name: e for e in entries if absolute(e.path) not in self._gone}
        if absolute(path) in self._gone or _exists(scratch):
            with original(scratch) as entries:
                found.update({e.name: e for e in entries})
        return _Entries(found.values())

    def _concerns(self, file: Any) -> bool:
        if not is_path(file):
            return False
        place = absolute(file)
        return not place.startswith((*_LEFT_ALONE, str(self._folder), *self._own))

    def _place(self, file: Any) -> Path:
        return Path(str(self._folder) + absolute(file))

    def _written(self, file: Any, *, keep: bool) -> Path:
        """Where to write it; with `keep`, beginning with what is in it now."""
        scratch, real = self._place(file), absolute(file)
        if not Path(real).parent.is_dir():
            return Path(real)  # fails as it should
        scratch.parent.mkdir(parents=True, exist_ok=True)
        if keep and not _exists(scratch) and real not in self._gone and _is_there(real):
            shutil.copyfile(real, scratch)
        self._gone.discard(real)
        return scratch

    def _read(self, file: Any) -> Any:
        scratch = self._place(file)
        return scratch if _exists(scratch) or absolute(file) in self._gone else file


class _Entries:
    """What os.scandir gives: an iterator that can be closed."""

    def __init__(self, entries: Iterable[os.DirEntry[str]]) -> None:
        self._entries = iter(list(entries))

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def writes(mode: str) -> bool:
    return bool(set("wax+") & set(mode))


def is_path(file: Any) -> bool:
    return isinstance(file, (str, bytes, os.PathLike))  # and not a number or an open file


def absolute(file: Any) -> str:
    return os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - a Path would follow links


def _is_there(path: str) -> bool:
    try:
        _stat(path)
    except (OSError, ValueError):
        return False
    return True
