"""Python's hashes of strings are random in every process: a run that may be repeated gets a seed that can be, too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OURS, _PYTHONS = "STAYFINITE_HASH_SEED", "PYTHONHASHSEED"
_seed: str | None = None


def pin() -> None:
    """Start this command anew with a chosen seed, unless one was chosen already. The script does not see it."""
    global _seed
    if _OURS in os.environ:
        _seed = os.environ.pop(_OURS)
        os.environ.pop(_PYTHONS, None)
        return
    chosen = _PYTHONS in os.environ or not sys.flags.hash_randomization
    if chosen or not _is_command() or os.environ.get("WORLD_SIZE", "1") != "1":
        return
    seed = str(int.from_bytes(os.urandom(4), "little"))
    os.execve(sys.executable, sys.orig_argv, {**os.environ, _OURS: seed, _PYTHONS: seed})


def with_seed(environment: dict[str, str], seed: str | None) -> dict[str, str]:
    """The environment of a second run."""
    return environment if seed is None else {**environment, _OURS: seed, _PYTHONS: seed}


def seed_of_this_run() -> str | None:
    return _seed


def _is_command() -> bool:
    """This process was started as `stayfinite run`, and is not a program that calls it."""
    name = Path(sys.argv[0])
    ours = name.stem == "stayfinite" or (name.name == "__main__.py" and name.parent.name == "stayfinite")
    return ours and sys.argv[1:2] == ["run"] and bool(sys.executable) and os.name == "posix"
