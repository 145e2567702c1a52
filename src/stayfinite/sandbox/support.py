"""What this machine offers for a sandbox, found out by really trying in a process that is thrown away."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache

from stayfinite.sandbox import landlock, process, syscalls
from stayfinite.sandbox.process import Kind

VARIABLE = "STAYFINITE_SANDBOX"
"""Set to "landlock" or "none", a stronger sandbox is not used: for tests, and for machines where it misbehaves."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The best sandbox there is; `reason` says why it is not a better one."""

    kind: Kind
    reason: str = ""


def sandbox() -> Sandbox:
    """What can be used here, found out once."""
    return _find(os.environ.get(VARIABLE, ""))


def allows(kind: Kind | None) -> bool:
    """Whether there is a sandbox, or this kind of it."""
    if kind is None:
        return sandbox().kind != "none"
    return (kind == "landlock" and landlock.abi() > 0) or kind == sandbox().kind


@cache
def _find(asked: str) -> Sandbox:
    if sys.platform != "linux":
        return Sandbox("none", "a sandbox needs Linux")
    if not syscalls.known_machine():
        return Sandbox("none", "the system calls of this kind of processor are not known")
    if asked == "none":
        return Sandbox("none", f"{VARIABLE}=none was set")
    refused = f"{VARIABLE}=landlock was set" if asked == "landlock" else _try_namespaces()
    if refused is None:
        return Sandbox("namespaces")
    if landlock.abi() > 0:
        return Sandbox("landlock", refused)
    return Sandbox("none", f"{refused}, and this kernel has no Landlock")


def _try_namespaces() -> str | None:
    """Why namespaces cannot be used, or None."""
    done = process.run([sys.executable, "-I", "-S", "-c", ""], "namespaces", 30)
    if done.status == "finished" and done.exit_code == 0:
        return None
    return f"namespaces cannot be used here ({done.sentence})"
