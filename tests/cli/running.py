"""Runs a script, by python alone or under `stayfinite run`, as a process of its own; looks at a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import preloaded

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def plain(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _ran(folder, source, "train.py", *arguments)


def guarded(
    folder: Path, source: str, *options: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return _ran(folder, source, "-m", "stayfinite", "run", *options, "train.py", *arguments)


def bytes_read(pid: int) -> int:
    """By a process, since it was forked; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(dict(line.split(": ") for line in lines)["rchar"])


def _ran(folder: Path, source: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
    return preloaded.run(
        [sys.executable, *command],
        cwd=folder,
        env=ENVIRONMENT,
        timeout=300,
    )
