"""The system calls a sandbox is made of, by ctypes: namespaces, mounts, capabilities, prctl."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC = 0x00020000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 24, 36
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAP_AMBIENT = 38, 22, 47
PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4
MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 2, 0x10, 0x20
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_CAPABILITY_VERSION_3 = 0x20080522

# Numbers that libc has no function for; the newer ones are the same everywhere.
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
MOUNT_SETATTR, LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 442, 444, 445, 446

# What root keeps inside: to read and write as it could before, within its own copy of the world.
# chown, dac*, fowner, fsetid, kill, setgid, setuid, bind service
_KEPT_BY_ROOT = 0, 1, 2, 3, 4, 5, 6, 7, 10


@cache
def libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    library.syscall.restype = ctypes.c_long
    return library


def known_machine() -> bool:
    """Whether the numbers of the system calls are known here."""
    return sys.platform == "linux" and platform.machine() in PIVOT_ROOT and sys.maxsize > 2**32


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _checked(libc().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str | Path, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    arguments = (
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind is not None else None,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data is not None else None,
    )
    _checked(libc().mount(*arguments), f"mount {kind or 'bind'} on {target}")


def make_read_only(target: str | Path, *, recursive: bool) -> None:
    """Make a mount (and those below it) read-only; flags that the kernel has locked stay as they are."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _checked(
        libc().syscall(
            MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, attributes, ctypes.sizeof(attributes)
        ),
        f"make {target} read-only",
    )


def pivot_root(new: str | Path) -> None:
    """Make `new` the root and let go of the old one."""
    os.chdir(new)
    number = PIVOT_ROOT[platform.machine()]
    _checked(libc().syscall(number, b".", b"."), "pivot_root")
    _checked(libc().umount2(b".", MNT_DETACH), "umount of the old root")
    os.chdir("/")


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    _checked(
        libc().prctl(ctypes.c_int(option), ctypes.c_ulong(first), ctypes.c_ulong(second), zero, zero),
        f"prctl({option})",
    )


def die_with_parent(signal: int, parent: int) -> None:
    """Send this process `signal` when its parent ends. 0 for a parent outside our process namespace."""
    prctl(PR_SET_PDEATHSIG, signal)
    if os.getppid() != parent:  # it has ended in the meantime
        os._exit(70)


def drop_capabilities() -> None:
    """Give up what could undo the sandbox. An ordinary user keeps nothing, root what files need."""
    keep = _KEPT_BY_ROOT if os.geteuid() == 0 else ()
    prctl(PR_CAP_AMBIENT, 4)  # clear all
    for number in range(64):
        if number not in keep:
            try:
                prctl(PR_CAPBSET_DROP, number)
            except OSError:
                break  # no capability has this number
    mask = sum(1 << number for number in keep)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)  # effective, permitted, inheritable; twice 32 bits
    _checked(libc().capset(header, data), "capset")


def no_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)
