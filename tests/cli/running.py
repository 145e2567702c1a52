"""Runs a script, by python alone or under `stayfinite run`, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def plain(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _ran(folder, source, "train.py", *arguments)


def guarded(
    folder: Path, source: str, *options: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return _ran(folder, source, "-m", "stayfinite", "run", *options, "train.py", *arguments)


def _ran(folder: Path, source: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
