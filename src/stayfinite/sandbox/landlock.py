"""The weaker sandbox, where namespaces are refused: the kernel forbids writing anywhere but below a scratch folder.

What it cannot do: hide files, let a script write to its own places, keep it from unix sockets that have a path.
Writing elsewhere, TCP, UDP, and (from ABI 6 on) abstract sockets and signals to others fail as "not permitted".
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from stayfinite.sandbox import seccomp, syscalls

_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_RULE_PATH_BENEATH = 1
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/ptmx")
_SHARED_MEMORY = "/dev/shm"
SIGNALS_FROM = 6


def abi() -> int:
    """The version of Landlock that this kernel has; 0 for none."""
    if not syscalls.known_machine():
        return 0
    return max(0, int(syscalls.libc().syscall(syscalls.LANDLOCK_CREATE, None, 0, 1)))


def restrict(scratch: Iterable[Path]) -> None:
    """Forbid writing outside of `scratch`, for this process and everything it starts, for ever."""
    version = abi()
    if version == 0:
        raise OSError(0, "this kernel has no Landlock")
    handled = _WRITE_FILE | _MAKE_AND_REMOVE
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    network = 3 if version >= 4 else 0  # bind, connect
    scoped = 3 if version >= SIGNALS_FROM else 0  # abstract unix sockets, signals
    attributes = (ctypes.c_uint64 * 3)(handled, network, scoped)
    size = 24 if version >= SIGNALS_FROM else 16 if version >= 4 else 8
    ruleset = _checked(syscalls.libc().syscall(syscalls.LANDLOCK_CREATE, attributes, size, 0))
    try:
        for folder in scratch:
            _allow(ruleset, str(folder), handled)
        for device in _DEVICES:
            _allow(ruleset, device, handled & (_WRITE_FILE | _TRUNCATE))
        if shared_memory_is_free():
            _allow(ruleset, _SHARED_MEMORY, handled)
        syscalls.no_new_privileges()
        _checked(syscalls.libc().syscall(syscalls.LANDLOCK_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)
    refused = seccomp.LANDLOCKED.refused + (("truncate",) if version < 3 else ())
    wanted = seccomp.Filter(
        refused,
        seccomp.LANDLOCKED.pretended,
        seccomp.LANDLOCKED.stream_families if network else (1, 16),  # without rules for TCP: no TCP at all
        seccomp.LANDLOCKED.other_families,
    )
    seccomp.install(wanted)


def shared_memory_is_free() -> bool:
    """Nothing of ours is in /dev/shm that a script could harm. Workers of a DataLoader need to write there."""
    try:
        with os.scandir(_SHARED_MEMORY) as entries:
            return not any(os.access(entry.path, os.W_OK) for entry in entries)
    except OSError:
        return False


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not there: nothing to allow
    try:
        # packed: 64 bits of rights, 32 bits of a descriptor
        rule = (ctypes.c_ubyte * 12)(*rights.to_bytes(8, "little"), *handle.to_bytes(4, "little"))
        _checked(syscalls.libc().syscall(syscalls.LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(handle)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
