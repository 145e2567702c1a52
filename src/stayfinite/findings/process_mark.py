"""Which process wrote a record, and whether it still lives: for readers who find a record that was not closed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
_DEAD = ("Z", "X", "x")


def own_mark() -> dict[str, int | str]:
    """This process, so that no other one on any machine is taken for it; empty where the system does not tell."""
    try:
        _, began = _state_and_start(os.getpid())
        return {"pid": os.getpid(), "began": began, **_place()}
    except (OSError, ValueError, IndexError):
        return {}


def lives(mark: Mapping[str, object]) -> bool | None:
    """Does that process still run? None if it cannot be known from here: another machine, container or system."""
    pid, began = mark.get("pid"), mark.get("began")
    if type(pid) is not int or pid < 1 or type(began) is not int:
        return None
    try:
        place = _place()
    except OSError:
        return None
    if any(mark.get(name) != value for name, value in place.items()):
        return None
    try:
        state, seen = _state_and_start(pid)
    except (OSError, ValueError, IndexError):
        return _may_be_hidden(pid)
    return state not in _DEAD and seen == began


def _may_be_hidden(pid: int) -> bool | None:
    """/proc may hide what belongs to others; that something has the number, the kernel says all the same."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None
    return None


def _place() -> dict[str, int | str]:
    """The boot of the machine, and the container: where a number stands for one process."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"boot": boot, "namespace": (_PROC / "self/ns/pid").stat().st_ino}


def _state_and_start(pid: int) -> tuple[str, int]:
    """The state, and the clock tick at which it began. The name before them may hold spaces and brackets."""
    fields = (
        (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    )
    return fields[0], int(fields[19])
