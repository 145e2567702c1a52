"""Open files of a forked child: none of them may reach what its parent has open."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":  # elsewhere nothing here is ever called
    import fcntl


_MOST_COPIED = 256 << 20
_HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ONLY_AT_OPENING = os.O_CREAT | os.O_EXCL | os.O_TRUNC


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One open file as its parent left it."""

    number: int
    path: str
    mode: int
    flags: int
    position: int
    size: int
    named: bool  # its path still leads to it

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def reads(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY


def inherited(keep: Collection[int]) -> list[Descriptor]:
    """All open files but those to keep."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        number = int(entry.name)
        if number in keep:
            continue
        try:
            seen, path = os.fstat(number), str(entry.readlink())
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOENT):
                continue  # the one that listed the folder
            raise
        position = os.lseek(number, 0, os.SEEK_CUR) if stat.S_ISREG(seen.st_mode) else 0
        named = _leads_to(path, seen)
        found.append(Descriptor(number, path, seen.st_mode, flags, position, seen.st_size, named))
    return found


def _leads_to(path: str, seen: os.stat_result) -> bool:
    try:
        return os.path.samestat(Path(path).stat(), seen)
    except OSError:
        return False


def replace_all(descriptors: Collection[Descriptor], *, copy_on_write: bool) -> None:
    """Inside the sandbox: put something harmless in the place of every one of them.

    A file that is read is opened again, with a position of its own. One that is written is opened again in the copy
    of the file system (`copy_on_write`), or becomes a file in memory with the same content. Pipes, sockets,
    terminals, event queues and what is too large to copy become /dev/null.
    """
    for one in descriptors:
        if one.path in _HARMLESS and stat.S_ISCHR(one.mode):
            continue
        made = _harmless(one, copy_on_write)
        os.dup2(made, one.number, inheritable=False)
        os.close(made)
        if stat.S_ISREG(one.mode):
            _seek(one)


def _seek(one: Descriptor) -> None:
    try:
        os.lseek(one.number, one.position, os.SEEK_SET)
    except OSError as error:
        if error.errno != errno.ESPIPE:  # /dev/null has no position
            raise


def _harmless(one: Descriptor, copy_on_write: bool) -> int:
    again = (one.flags & ~_ONLY_AT_OPENING) | os.O_CLOEXEC
    with suppress(OSError):
        if stat.S_ISDIR(one.mode):
            return os.open(one.path, again)
        if stat.S_ISREG(one.mode) and not one.writes:
            return os.open(f"/proc/self/fd/{one.number}", os.O_RDONLY | os.O_CLOEXEC)
        if stat.S_ISREG(one.mode) and copy_on_write and one.named and one.size <= _MOST_COPIED:
            return os.open(one.path, again)
        if stat.S_ISREG(one.mode) and (one.size <= _MOST_COPIED or not one.reads):
            return _in_memory(one)
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def _in_memory(one: Descriptor) -> int:
    target = os.memfd_create("stayfinite")
    position = 0
    while one.reads and position < one.size:
        piece = os.pread(one.number, 1 << 20, position)
        if not piece:
            break
        os.write(target, piece)
        position += len(piece)
    os.ftruncate(target, one.size)
    fcntl.fcntl(target, fcntl.F_SETFL, one.flags & os.O_APPEND)
    return target
