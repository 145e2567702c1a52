"""A copy-on-write view of the whole file system: an overlay over everything, the uppermost layer in memory.

The kernel lets an ordinary user put an overlay only over a folder that no other mount lies in. So a folder that has
mounts inside, such as /, is made anew entry by entry; the others become overlays of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.sandbox import syscalls

_COPIED, _COPIED_IN_ALL = 64 << 20, 256 << 20  # bytes of files beside mounts that become writable copies
_HARMLESS_DEVICES = ("null", "zero", "full", "random", "urandom")
_ACCELERATORS = re.compile(r"nvidia|kfd$|dri$|accel|dxg$|mali|davinci|hl\d|neuron\d|vfio$")
_SYSTEM_PROC = ("sys", "sysrq-trigger", "irq", "bus")  # what is not a process's own
_LEFT_OUT = ("proc", "sysfs", "devpts", "mqueue", "autofs", "binfmt_misc", "debugfs", "tracefs", "configfs",
             "securityfs", "bpf", "pstore", "efivarfs", "fusectl", "rpc_pipefs", "nsfs")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    number: int
    place: str
    kind: str
    read_only: bool


def parse_mounts(text: str) -> list[Mount]:
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        options = {*fields[5].split(","), *(more[2].split(",") if len(more) > 2 else ())}
        found.append(Mount(int(fields[0]), _unescape(fields[4]), more[0], "ro" in options))
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def visible_mounts() -> dict[str, Mount]:
    """Mounts by their place; those that another one covers are left out."""
    known = {m.number: m for m in parse_mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))}
    found = {}
    for mount in known.values():
        number = _mount_number(mount.place)
        if number == mount.number:
            found[mount.place] = mount
    return found


def _mount_number(place: str) -> int | None:
    try:
        handle = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        for line in Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines():
            if line.startswith("mnt_id:"):
                return int(line.split()[1])
    finally:
        os.close(handle)
    return None


@dataclass(slots=True)
class View:
    """The new root while it is made. `problems` are places that could only be made read-only."""

    base: Path  # a file system of our own: root/ is the new root
    layers: Path  # where what is written goes
    mounts: dict[str, Mount]
    problems: list[str] = field(default_factory=list)
    _made: int = 0
    _copied: int = 0

    @property
    def root(self) -> Path:
        return self.base / "root"

    def make(self) -> None:
        """Fill the new root with what the present one shows."""
        self.root.mkdir()
        syscalls.mount(str(self.root), self.root, None, syscalls.MS_BIND)  # only a mount can become the root
        self._folder("/")

    def inside(self, place: str) -> Path:
        """Where the new root is to have this place."""
        return Path(f"{self.root}{place}") if place != "/" else self.root

    def _folder(self, place: str) -> None:
        mount = self.mounts.get(place)
        if place == "/proc":
            self._proc()
        elif place == "/dev":
            self._dev()
        elif place == "/sys":
            self._bound_read_only(place, recursive=True)
        elif mount is not None and (mount.kind in _LEFT_OUT or mount.kind.startswith("cgroup")):
            self.inside(place).mkdir(exist_ok=True)  # empty: nothing a training needs
        elif place == str(self.layers):
            self.inside(place).mkdir(exist_ok=True)  # an overlay cannot lie above its own layers
        elif self._holds_mounts(place):
            self._entries(place)
        else:
            self._overlay(place)

    def _holds_mounts(self, place: str) -> bool:
        below = "/" if place == "/" else place + "/"
        places = (*self.mounts, str(self.layers))
        return any(other.startswith(below) and other != place for other in places)

    def _entries(self, place: str) -> None:
        """A folder with mounts inside, made anew with everything in it."""
        self._same_folder(place)
        try:
            paths = sorted(str(entry) for entry in Path(place).iterdir())
        except OSError as error:
            self.problems.append(f"{place}: {error.strerror}")
            return
        for path in paths:
            try:
                mode = Path(path).lstat().st_mode
            except OSError:
                continue  # gone, or not ours to see
            if stat.S_ISLNK(mode):
                self.inside(path).symlink_to(Path(path).readlink())
            elif stat.S_ISDIR(mode):
                if os.access(path, os.X_OK):
                    self._folder(path)
                else:
                    self._same_folder(path)
            elif stat.S_ISREG(mode):
                self._file(path)
            # Sockets, pipes and devices stay outside.

    def _same_folder(self, place: str) -> None:
        inside, seen = self.inside(place), Path(place).stat()
        inside.mkdir(exist_ok=True)
        self._same_owner(inside, seen)
        inside.chmod(stat.S_IMODE(seen.st_mode))

    def _same_owner(self, inside: Path, seen: os.stat_result) -> None:
        with suppress(OSError):  # an owner that has no number in this namespace: then it is ours
            os.chown(inside, seen.st_uid, seen.st_gid)

    def _file(self, place: str) -> None:
        """A file beside a mount: a writable copy if it is small, else the file itself, read-only."""
        inside, seen = self.inside(place), Path(place).stat()
        if (
            seen.st_size <= _COPIED
            and self._copied + seen.st_size <= _COPIED_IN_ALL
            and os.access(place, os.R_OK)
        ):
            shutil.copy2(place, inside)
            self._same_owner(inside, seen)
            self._copied += seen.st_size
            return
        inside.touch()
        self._bound_read_only(place, recursive=False)

    def _overlay(self, place: str) -> None:
        """Everything below `place`, copied when it is written to."""
        inside, mount = self.inside(place), self._mount_of(place)
        inside.mkdir(exist_ok=True)
        upper, work = self._new_layers()
        seen = Path(place).stat()
        self._same_owner(upper, seen)
        upper.chmod(stat.S_IMODE(seen.st_mode))
        lower = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # through /proc, because commas and colons in a name would mean something to the kernel
            options = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work},userxattr"
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
            syscalls.mount("overlay", inside, "overlay", flags, options)
        except OSError as error:
            self.problems.append(f"{place} is read-only ({error.strerror})")
            self._bound_read_only(place, recursive=False)
            return
        finally:
            os.close(lower)
        os.utime(inside, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        if mount is not None and mount.read_only:
            syscalls.make_read_only(inside, recursive=False)

    def _new_layers(self) -> tuple[Path, Path]:
        self._made += 1
        upper, work = self.layers / f"{self._made}u", self.layers / f"{self._made}w"
        upper.mkdir(parents=True)
        work.mkdir()
        return upper, work

    def _mount_of(self, place: str) -> Mount | None:
        for path in (place, *map(str, Path(place).parents)):
            if path in self.mounts:
                return self.mounts[path]
        return None

    def _bound_read_only(self, place: str, *, recursive: bool) -> None:
        inside = self.inside(place)
        if Path(place).is_dir():
            inside.mkdir(exist_ok=True)
        flags = syscalls.MS_BIND | (syscalls.MS_REC if recursive else 0)
        syscalls.mount(place, inside, None, flags)
        syscalls.make_read_only(inside, recursive=recursive)

    def _proc(self) -> None:
        """Our own processes only; the settings of the system read-only."""
        inside = self.inside("/proc")
        inside.mkdir()
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
        try:
            syscalls.mount("proc", inside, "proc", flags)
        except OSError:  # a container that hides parts of it: as it is, and read-only
            self._bound_read_only("/proc", recursive=True)
            return
        for name in _SYSTEM_PROC:
            part = inside / name
            if part.exists():
                syscalls.mount(str(part), part, None, syscalls.MS_BIND | syscalls.MS_REC)
                syscalls.make_read_only(part, recursive=True)

    def _dev(self) -> None:
        """Harmless devices, accelerators, a copy of the shared memory, terminals of our own."""
        inside = self.inside("/dev")
        inside.mkdir()
        for name in _HARMLESS_DEVICES:
            self._device(f"/dev/{name}")
        for entry in sorted(Path("/dev").iterdir()):
            if entry.is_symlink():
                (inside / entry.name).symlink_to(entry.readlink())
            elif _ACCELERATORS.match(entry.name):
                self._device(str(entry))
        shared = "/dev/shm"
        if Path(shared).is_dir() and not Path(shared).is_symlink():
            self._folder(shared)
        if Path("/dev/pts").is_dir():
            (inside / "pts").mkdir()
            (inside / "ptmx").symlink_to("pts/ptmx")
            flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
            try:
                syscalls.mount(
                    "devpts", inside / "pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=620"
                )
            except OSError as error:
                self.problems.append(f"/dev/pts is empty ({error.strerror})")

    def _device(self, path: str) -> None:
        inside = self.inside(path)
        if Path(path).is_dir():
            inside.mkdir(exist_ok=True)
        elif Path(path).exists():
            inside.touch()
        else:
            return
        syscalls.mount(path, inside, None, syscalls.MS_BIND | syscalls.MS_REC)


def room_in_memory() -> int:
    """Bytes that may be written: half of what is free, also by the limit of a container."""
    free = _meminfo("MemAvailable")
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        allowed = _number(limit)
        if allowed is not None:
            free = min(free, max(0, allowed - (_number(used) or 0)))
    return max(64 << 20, free // 2)


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 1 << 30


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
