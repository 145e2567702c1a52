"""ScratchFiles: what the script writes in a second run goes to a scratch folder; the files of the first stay."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from stayfinite.launch.patches import Patches

_WRITING = set("wax+")
_LEFT_ALONE = ("/dev", "/proc", "/sys")


class ScratchFiles:
    """A file that is written is written in the scratch folder, and from then on read from there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gone: set[str] = set()  # removed, as far as the script can see

    def install(self, patches: Patches) -> None:
        patches.wrap(builtins, "open", self._opening)
        patches.wrap(io, "open", self._opening)
        patches.wrap(torch, "save", self._saving)
        for name in ("replace", "rename"):
            patches.wrap(os, name, self._moving)
        for name in ("remove", "unlink"):
            patches.wrap(os, name, self._removing)

    def _opening(self, original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not self._concerns(file):
            return original(file, mode, *args, **kwargs)
        if _WRITING & set(mode):
            return original(self._written(file, keep="w" not in mode), mode, *args, **kwargs)
        return original(self._read(file), mode, *args, **kwargs)

    def _saving(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return original(obj, self._written(f, keep=False) if self._concerns(f) else f, *args, **kwargs)

    def _moving(self, original: Any, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self._concerns(src) and self._concerns(dst)):
            return original(src, dst, *args, **kwargs)
        if Path(src).is_dir():
            return None  # a folder of the first run stays where it is
        source = self._written(src, keep=True)
        self._gone.add(_absolute(src))
        return original(source, self._written(dst, keep=False), *args, **kwargs)

    def _removing(self, original: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._concerns(path) or kwargs.get("dir_fd") is not None:
            return original(path, *args, **kwargs)
        scratch = self._place(path)
        if scratch.exists():
            original(scratch)
        elif not Path(path).exists():
            return original(path)  # says what is missing
        self._gone.add(_absolute(path))
        return None

    def _concerns(self, file: Any) -> bool:
        if not isinstance(file, (str, bytes, os.PathLike)):
            return False  # a number or an open file
        absolute = _absolute(file)
        return not absolute.startswith((*_LEFT_ALONE, str(self._folder)))

    def _place(self, file: Any) -> Path:
        return Path(str(self._folder) + _absolute(file))

    def _written(self, file: Any, *, keep: bool) -> Path:
        """Where to write it; with `keep`, beginning with what is in it now."""
        scratch = self._place(file)
        if not Path(os.fsdecode(file)).parent.is_dir() and not scratch.parent.is_dir():
            return Path(os.fsdecode(file))  # fails as it should
        scratch.parent.mkdir(parents=True, exist_ok=True)
        real = _absolute(file)
        if keep and not scratch.exists() and real not in self._gone and Path(real).is_file():
            shutil.copyfile(real, scratch)
        self._gone.discard(real)
        return scratch

    def _read(self, file: Any) -> Any:
        scratch = self._place(file)
        if scratch.exists() or _absolute(file) in self._gone:
            return scratch
        return file


def _absolute(file: Any) -> str:
    return os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - a Path would follow links
