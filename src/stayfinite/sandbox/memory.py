"""Shared memory of a forked child becomes its own, so that what it writes there is not seen by its parent."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from stayfinite.sandbox import syscalls

_MOST_COPIED = 1 << 30
_ONLY_MEMORY = ("/dev/shm/", "/dev/zero", "anon_inode:[io_uring]")
"""A copy of them is only memory: of the requests in a copied io_uring the kernel knows nothing."""


class CannotSeparate(Exception):
    """The memory cannot be made the child's own; the text says which."""


@dataclass(frozen=True, slots=True)
class SharedMapping:
    """A writable piece of memory that other processes see too."""

    start: int
    length: int
    protection: int
    offset: int
    inode: int
    path: str


def shared_mappings(maps: str) -> list[SharedMapping]:
    """The writable shared ones of /proc/self/maps."""
    found = []
    for line in maps.splitlines():
        fields = line.split(None, 5)
        span, permissions = fields[0], fields[1]
        if "w" not in permissions or "s" not in permissions:
            continue
        first, last = (int(number, 16) for number in span.split("-"))
        protection = syscalls.PROT_WRITE
        protection |= syscalls.PROT_READ if "r" in permissions else 0
        protection |= syscalls.PROT_EXEC if "x" in permissions else 0
        path = fields[5] if len(fields) > 5 else ""
        found.append(SharedMapping(first, last - first, protection, int(fields[2], 16), int(fields[4]), path))
    return found


def obstacle() -> str | None:
    """Why the shared memory of this process cannot be separated after a fork, or None."""
    copied = 0
    for mapping in shared_mappings(Path("/proc/self/maps").read_text()):
        if mapping.path.startswith(("/dev/", "anon_inode:")) and not mapping.path.startswith(_ONLY_MEMORY):
            return f"the process shares memory with a device ({mapping.path})"
        if not _is_file_at_its_path(mapping):
            copied += mapping.length
    if copied > _MOST_COPIED:
        return f"the process shares {copied / 2**30:.1f} GB of memory with others, too much to copy"
    return None


def separate() -> None:
    """In a forked child, before anything else runs: every writable shared mapping becomes a private one.

    A file keeps its content and is copied page by page when it is written to; anything else is copied now.
    """
    for mapping in shared_mappings(Path("/proc/self/maps").read_text()):
        if _is_file_at_its_path(mapping):
            _map_file_privately(mapping)
        else:
            _copy(mapping)
    left = shared_mappings(Path("/proc/self/maps").read_text())
    if left:
        raise CannotSeparate(f"memory of {left[0].path or 'another process'} is still shared")


def _is_file_at_its_path(mapping: SharedMapping) -> bool:
    if not mapping.path.startswith("/"):
        return False
    try:
        seen = Path(mapping.path).stat()
    except OSError:
        return False
    return seen.st_ino == mapping.inode and os.access(mapping.path, os.R_OK)


def _map_file_privately(mapping: SharedMapping) -> None:
    handle = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flags = syscalls.MAP_PRIVATE | syscalls.MAP_FIXED
        _map(mapping, flags, handle)
    finally:
        os.close(handle)


def _copy(mapping: SharedMapping) -> None:
    content = ctypes.string_at(mapping.start, mapping.length)
    _map(mapping, syscalls.MAP_PRIVATE | syscalls.MAP_FIXED | syscalls.MAP_ANONYMOUS, -1)
    ctypes.memmove(mapping.start, content, mapping.length)


def _map(mapping: SharedMapping, flags: int, handle: int) -> None:
    offset = mapping.offset if handle >= 0 else 0
    place = syscalls.libc().mmap(mapping.start, mapping.length, mapping.protection, flags, handle, offset)
    if place != mapping.start:
        raise CannotSeparate(f"{mapping.path or 'shared memory'}: {os.strerror(ctypes.get_errno())}")
