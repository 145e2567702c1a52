"""FileChanges: what a run does to files, so that a second run can be shown them as they were.

It only observes. Python tells of every file it is about to open for writing, remove or rename (audit events), and
then a copy is kept where that is cheap. What compiled code and other programs write shows in a list of names, sizes
and times of the folders in question, made at the beginning and again at the end.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stayfinite.sandbox.past import Earlier, Past

_MOST_COPIED, _MOST_COPIED_IN_ALL = 64 << 20, 256 << 20
_MOST_PATHS = 10_000
_MOST_LISTED, _SECONDS_TO_LIST = 10_000, 0.15
_NOT_LISTED = (".git", ".hg", ".venv", "venv", "node_modules", "site-packages", "__pycache__", ".cache")
_NO_FILES = ("/dev/null", "/dev/pts", "/dev/tty", "/proc/", "/sys/", "/dev/fd", "/dev/std")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FICLONE = 0x40049409  # ioctl: the same blocks, copied by the file system when one of the two is written

Signature = tuple[int, int, int]  # number, size, time of a file


class FileChanges:
    """What was there before the script, as far as it was changed."""

    def __init__(self) -> None:
        self._on = False
        self._process = os.getpid()
        self._busy: set[int] = set()  # threads in which we ourselves work with files
        self._store: str | None = None
        self._copied = 0
        self.missing: set[str] = set()
        self.earlier: dict[str, Earlier] = {}
        self._signatures: dict[str, Signature] = {}
        self._too_large: dict[str, str] = {}
        self._listed: dict[str, Signature] = {}
        self._looked_into: set[str] = set()  # folders of which all names are in that list
        self._roots: list[str] = []
        self._moved: set[str] = set()  # folders that were there before and got another name
        self._trouble: set[str] = set()
        self.sockets: list[str] = []  # of others, by their paths: Landlock does not keep a script from them
        self.sends_signals = False  # nor, before its ABI 6, from signals
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._opening,
            "os.remove": self._removing,
            "os.rmdir": self._removing,
            "os.rename": self._renaming,
            "os.mkdir": self._making,
            "os.truncate": self._truncating,
            "os.symlink": self._linking,
            "os.link": self._linking,
            "shutil.rmtree": self._removing_tree,
            "sqlite3.connect": self._connecting_database,
            "socket.bind": self._binding,
            "socket.connect": self._connecting,
            "os.kill": self._signalling,
        }

    def start(self, roots: Iterable[str]) -> None:
        """Listen from now on; what is below `roots` is listed, as far as that takes no time."""
        self._roots = list(dict.fromkeys(os.path.realpath(root) for root in roots))
        self._listed, self._looked_into = _list(self._roots)
        self._on = True
        sys.addaudithook(self._heard)  # for ever: there is no way to take it back

    def stop(self) -> None:
        self._on = False

    def close(self) -> None:
        """Throw the copies away."""
        self.stop()
        if self._store is not None:
            shutil.rmtree(self._store, ignore_errors=True)

    def past(self) -> tuple[Past, list[str]]:
        """The files as they were, and those of which that cannot be had, with what became of them."""
        self.stop()
        now, _ = _list(self._roots, most=2 * _MOST_LISTED, seconds=5.0)
        appeared = {
            path
            for path in now
            if path not in self._listed and path.rpartition(os.sep)[0] in self._looked_into
        }
        missing = self.missing | (appeared - set(self.earlier))
        missing = {path for path in missing if not _below(path, missing)}
        anew = {path for path in self._moved if not any(_below(other, (path,)) for other in self._too_large)}
        changed = [
            one
            for one in self.earlier.values()
            if self._is_changed(one.path) or _below(one.path, anew, itself=True)
        ]
        missing |= anew  # an overlay cannot rename a folder that it did not make: it makes it anew
        unlike = {path: what for path, what in self._too_large.items() if self._is_changed(path)}
        ours = _numbers_of_output()
        for path, before in self._listed.items():
            if (
                path in self.earlier
                or path in unlike
                or before[0] in ours
                or _below(path, missing | unlike.keys())
            ):
                continue
            after = _signature(path)
            if after is None:
                unlike[path] = "removed"
            elif after != before and not stat.S_ISDIR(os.lstat(path).st_mode):
                unlike[path] = "changed"
        differing = [f"{path} ({what})" for path, what in sorted(unlike.items())]
        return Past(sorted(missing), changed), [*differing, *sorted(self._trouble)]

    # -- what python tells

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        handler = self._handlers.get(event)
        if handler is None or not self._on or os.getpid() != self._process:
            return
        if threading.get_ident() in self._busy:
            return
        try:
            with self._working():
                handler(*args)
        except Exception as error:  # noqa: BLE001 - an error here would become one of the script
            self._trouble.add(f"a change of files was not noted ({type(error).__name__}: {error})")

    @contextmanager
    def _working(self) -> Iterator[None]:
        thread = threading.get_ident()
        self._busy.add(thread)
        try:
            yield
        finally:
            self._busy.discard(thread)

    def about_to_write(self, file: Any) -> None:
        """For writers that python does not tell of."""
        if self._on and isinstance(file, (str, bytes, os.PathLike)):
            self._heard("open", (file, "w", 0))

    def _opening(self, path: Any, mode: Any, flags: Any) -> None:
        writes = set("wax+") & set(mode) if isinstance(mode, str) else int(flags or 0) & _WRITES
        if writes and isinstance(path, (str, bytes, os.PathLike)):
            self._before(os.path.realpath(os.fsdecode(path)))

    def _removing(self, path: Any, dir_fd: int = -1) -> None:
        self._before(_place(path, dir_fd))

    def _removing_tree(self, path: Any, dir_fd: Any = -1) -> None:
        self._before(_place(path, -1 if dir_fd is None else dir_fd))

    def _renaming(self, source: Any, target: Any, source_fd: int = -1, target_fd: int = -1) -> None:
        place = _place(source, source_fd)
        self._before(place)
        if place in self.earlier and self.earlier[place].kind == "folder":
            self._moved.add(place)
        self._before(_place(target, target_fd))

    def _making(self, path: Any, mode: int, dir_fd: int = -1) -> None:
        self._before(_place(path, dir_fd))

    def _linking(self, source: Any, target: Any, *fds: int) -> None:
        self._before(_place(target, fds[-1] if fds else -1))

    def _truncating(self, path: Any, length: int) -> None:
        if not isinstance(path, int):
            self._before(os.path.realpath(os.fsdecode(path)))

    def _connecting_database(self, database: Any) -> None:
        name = os.fsdecode(database)
        if name and name != ":memory:" and not name.startswith("file:"):
            place = os.path.realpath(name)
            for ending in ("", "-journal", "-wal", "-shm"):
                self._before(place + ending)

    def _binding(self, socket: Any, address: Any) -> None:
        if _is_path_of_socket(address):
            self._before(_place(address, -1))

    def _connecting(self, socket: Any, address: Any) -> None:
        if _is_path_of_socket(address) and not _below(
            place := _place(address, -1), self.missing, itself=True
        ):
            self.sockets.append(place)

    def _signalling(self, process: int, number: int) -> None:
        self.sends_signals = True

    # -- what was there

    def _before(self, path: str) -> None:
        """The first time that something happens to this path: keep what is there."""
        if path in self.earlier or path in self._too_large or path.startswith(_NO_FILES):
            return
        if len(self.earlier) + len(self.missing) > _MOST_PATHS or _below(path, self.missing, itself=True):
            return
        try:
            seen = os.lstat(path)
        except OSError:
            self.missing.add(path)
            return
        self._signatures[path] = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if stat.S_ISDIR(seen.st_mode):
            self.earlier[path] = Earlier(path, "folder", seen.st_mode, seen.st_mtime_ns)
            for entry in list(os.scandir(path)):
                self._before(entry.path)
        elif stat.S_ISLNK(seen.st_mode):
            target = os.readlink(path)  # noqa: PTH115
            self.earlier[path] = Earlier(path, "link", seen.st_mode, seen.st_mtime_ns, target=target)
        elif stat.S_ISREG(seen.st_mode):
            self._keep(path, seen)
        else:
            self._too_large[path] = "no ordinary file"

    def _keep(self, path: str, seen: os.stat_result) -> None:
        if self._store is None:
            self._store = tempfile.mkdtemp(prefix="stayfinite-")
        copy = f"{self._store}/{len(self.earlier)}"
        if not _clone(path, copy):
            if seen.st_size > _MOST_COPIED or self._copied + seen.st_size > _MOST_COPIED_IN_ALL:
                self._too_large[path] = f"changed, and too large to keep: {seen.st_size / 2**20:.0f} MB"
                return
            shutil.copyfile(path, copy)
            self._copied += seen.st_size
        self.earlier[path] = Earlier(path, "file", seen.st_mode, seen.st_mtime_ns, copy)

    def _is_changed(self, path: str) -> bool:
        return _signature(path) != self._signatures.get(path)


def _is_path_of_socket(address: Any) -> bool:
    return isinstance(address, (str, bytes)) and os.fsdecode(address)[:1] not in ("", "\0")


def _place(path: Any, dir_fd: int) -> str:
    """Where a name leads, links on the way followed but not the last one."""
    name = os.fsdecode(path)
    if dir_fd >= 0 and not os.path.isabs(name):  # noqa: PTH117
        name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)  # noqa: PTH115, PTH118
    head, tail = os.path.split(os.path.abspath(name))  # noqa: PTH100
    return os.path.join(os.path.realpath(head), tail)  # noqa: PTH118


def _below(path: str, places: Iterable[str], *, itself: bool = False) -> bool:
    """Whether one of `places` is a folder above."""
    if itself and path in places:
        return True
    above = os.path.dirname(path)  # noqa: PTH120
    while len(above) > 1:
        if above in places:
            return True
        above = os.path.dirname(above)  # noqa: PTH120
    return False


def _clone(source: str, target: str) -> bool:
    """The same content without copying it, where the file system can."""
    try:
        import fcntl  # not on every system
    except ModuleNotFoundError:
        return False
    try:
        with Path(source).open("rb") as old, Path(target).open("wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except OSError:
        return False
    return True


def _signature(path: str) -> Signature | None:
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns)


def _numbers_of_output() -> set[int]:
    """The script's own output may go to a file in a listed folder, which grows with every line."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):  # closed
            found.add(os.fstat(descriptor).st_ino)
    return found


def _list(
    roots: Iterable[str], most: int = _MOST_LISTED, seconds: float = _SECONDS_TO_LIST
) -> tuple[dict[str, Signature], set[str]]:
    """Files and folders below, nearest first, until there are too many or it takes too long; and the folders that were
    looked into by then. Of any other nobody knows what was there."""
    end = time.monotonic() + seconds
    found: dict[str, Signature] = {}
    looked_into: set[str] = set()
    waiting = deque(roots)
    while waiting and len(found) < most and time.monotonic() < end:
        folder = waiting.popleft()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        looked_into.add(folder)
        for entry in entries:
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            found[entry.path] = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
            if stat.S_ISDIR(seen.st_mode) and entry.name not in _NOT_LISTED:
                waiting.append(entry.path)
    return found, looked_into
