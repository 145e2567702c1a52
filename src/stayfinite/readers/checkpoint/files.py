"""Files and folders, local or remote: whatever has `://` goes through fsspec."""

from __future__ import annotations

import glob
import importlib
import re
from pathlib import Path
from typing import Any

from stayfinite.readers.checkpoint.source import FileSource, HandleSource, Source, Unreadable

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*(::[^:]+)*://")


def is_url(path: str) -> bool:
    return _URL.match(path) is not None


def why_not_there(path: str) -> str:
    """In words, of a path at which there is neither a file nor a folder."""
    place = Path(path)
    try:
        if place.exists():
            return "neither a file nor a folder but a pipe, a socket or a device"
    except OSError as trouble:  # a link to itself, on older versions of python
        return f"cannot be opened ({trouble.strerror or trouble})"
    return "a link that leads nowhere" if place.is_symlink() else "there is no such file or folder"


def _remote(path: str) -> tuple[Any, str]:
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError as missing:
        raise Unreadable(
            f"{path}: reading a URL needs fsspec; install it with: pip install fsspec"
        ) from missing
    try:
        system, inner = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as trouble:
        raise Unreadable(f"{path}: {trouble}") from trouble
    return system, inner


def expand(pattern: str) -> list[str]:
    """The paths a pattern stands for; the pattern itself where it has no wildcard."""
    if not any(mark in pattern for mark in "*?["):
        return [pattern]
    if is_url(pattern):
        system, inner = _remote(pattern)
        return [system.unstrip_protocol(found) for found in sorted(system.glob(inner))]
    return [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207


def what_is(path: str) -> str:
    """ "file", "folder" or "missing"."""
    if is_url(path):
        system, inner = _remote(path)
        if system.isfile(inner):
            return "file"
        return "folder" if system.isdir(inner) else "missing"
    local = Path(path)
    return "file" if local.is_file() else "folder" if local.is_dir() else "missing"


def listing(path: str) -> tuple[list[str], list[str]]:
    """The names of the files and of the folders in a folder. Links to folders are not followed."""
    if is_url(path):
        system, inner = _remote(path)
        entries = system.ls(inner, detail=True)
        names = {kind: [e["name"].rstrip("/").rpartition("/")[2] for e in entries if e["type"] == kind]
                 for kind in ("file", "directory")}  # fmt: skip
        return sorted(names["file"]), sorted(names["directory"])
    entries = list(Path(path).iterdir())
    files = sorted(entry.name for entry in entries if entry.is_file())
    folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.is_symlink())
    return files, folders


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else str(Path(folder) / name)


def base(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2] if is_url(path) else Path(path).name


def parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] if is_url(path) else str(Path(path).parent)


def size_of(path: str) -> int:
    if is_url(path):
        system, inner = _remote(path)
        return int(system.size(inner) or 0)
    return Path(path).stat().st_size


def open_source(path: str) -> Source:
    """Bytes at any position of a file."""
    try:
        if is_url(path):
            system, inner = _remote(path)
            return HandleSource(system.open(inner, "rb"), path)
        return FileSource(path)
    except OSError as trouble:
        raise Unreadable(f"{path}: cannot be opened ({trouble.strerror or trouble})") from trouble
