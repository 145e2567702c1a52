"""The strong sandbox: namespaces of our own for users, mounts, network, processes and shared memory.

Inside, every file can be read and written as before, and nothing that is written leaves; there is a loopback and no
other network; other processes cannot be seen or signalled. Two halves, because a new user namespace gets its numbers
from outside: `Door` is the outside, `furnish` and `lock` are called inside.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from stayfinite.sandbox import seccomp, syscalls
from stayfinite.sandbox.mounts import View, room_in_memory, visible_mounts

if sys.platform != "win32":  # elsewhere nothing here is ever called
    import fcntl


_ALL = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWPID
)
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41


@dataclass(slots=True)
class Door:
    """Two pipes between the process that enters new namespaces and the one that stays outside."""

    _knocked: tuple[int, int]
    _opened: tuple[int, int]

    @classmethod
    def make(cls) -> Door:
        return cls(os.pipe(), os.pipe())

    def open_for(self, process: int) -> None:
        """Outside: when `process` has its new user namespace, give it its numbers."""
        os.close(self._knocked[1])
        os.close(self._opened[0])
        try:
            if os.read(self._knocked[0], 1):
                write_numbers(process)
                os.write(self._opened[1], b".")
        finally:
            os.close(self._knocked[0])
            os.close(self._opened[1])

    def enter(self) -> None:
        """Inside: separate from everything, and wait for the numbers."""
        os.close(self._knocked[0])
        os.close(self._opened[1])
        syscalls.unshare(_ALL)
        os.write(self._knocked[1], b".")
        os.close(self._knocked[1])
        given = os.read(self._opened[0], 1)
        os.close(self._opened[0])
        if not given:
            raise OSError(0, "the numbers of users could not be set")


def write_numbers(process: int) -> None:
    """Users keep their numbers: all of them for root, one's own for anybody else."""
    place = Path(f"/proc/{process}")
    try:
        for name in ("uid_map", "gid_map"):
            (place / name).write_text(_same_numbers(Path(f"/proc/self/{name}").read_text()))
    except OSError:
        (place / "setgroups").write_text("deny")
        (place / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
        (place / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")


def _same_numbers(present: str) -> str:
    """The map of our own namespace, each number onto itself."""
    rows = [line.split() for line in present.splitlines()]
    return "".join(f"{first} {first} {count}\n" for first, _, count in rows)


def furnish(scratch: Path, *, exchange: Path | None = None) -> list[str]:
    """In the first process of the new namespaces: mounts and loopback. Gives places that are only read-only.

    Afterwards the process lives in the copy: same paths, same working directory. What is written below `exchange` is
    the one thing that is seen outside. `scratch` is an empty folder, used where memory cannot hold the copy.
    """
    here = os.getcwd()  # noqa: PTH109 - as it is spelled, whatever links are in it
    mounts = visible_mounts()
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    # Somewhere to hang a file system of our own: a folder that is made anew in any case.
    base = Path("/dev/pts") if Path("/dev/pts").is_dir() else scratch
    size = f"size={room_in_memory()},mode=755"
    syscalls.mount("stayfinite", base, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, size)
    layers = base / "layers"
    if not takes_attributes(base) and base != scratch:
        # before Linux 6.6: an overlay on memory could not make a folder again that it removed
        layers = scratch
    view = View(base, layers, mounts)
    view.make()
    if exchange is not None:
        syscalls.mount(str(exchange), view.inside(str(exchange)), None, syscalls.MS_BIND)
    syscalls.pivot_root(view.root)
    raise_loopback()
    os.chdir(here)
    return view.problems


def takes_attributes(folder: Path) -> bool:
    """Whether this file system keeps what an overlay of an ordinary user has to note."""
    try:
        os.setxattr(folder, "user.overlay.try", b"y")
    except OSError:
        return False
    return True


def raise_loopback() -> None:
    """127.0.0.1 works inside, for a script that talks to itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_RUNNING))


def lock() -> None:
    """Give up everything that could undo the above."""
    syscalls.drop_capabilities()
    syscalls.no_new_privileges()
    seccomp.install(seccomp.NAMESPACED)
