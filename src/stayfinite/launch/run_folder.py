"""RunFolder: where a run's record and clean checkpoint go; unasked for, it stays only if something happened."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from stayfinite.guarding.arguments import new_run_dir


class RunFolder:
    """Made when the first thing is written to it."""

    def __init__(self, asked_for: Path | None) -> None:
        self._asked_for = asked_for
        self.path = asked_for

    def open(self) -> Path:
        if self.path is None:
            here = Path.cwd()
            self.path = (
                here / new_run_dir()
                if os.access(here, os.W_OK)
                else Path(tempfile.mkdtemp(prefix="stayfinite-"))
            )
        return self.path

    def close(self, *, keep: bool) -> None:
        """The run is over. A record nobody asked for, of a run without failures, is taken away."""
        if keep or self._asked_for is not None or self.path is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # there are other runs in it
            self.path.parent.rmdir()
        self.path = None
