"""RunFolder: where a run's record and clean checkpoint go; unasked for, it stays only if something happened."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from stayfinite.guarding.arguments import new_run_dir

_OURS = ("run.jsonl", "incidents/*/incident.json", "incidents/*/.incident.json.tmp", "snapshots/step-*.pt")


class RunFolder:
    """Made when the first thing is written to it. Wherever the script goes meanwhile, it is where the run began."""

    def __init__(self, asked_for: Path | None) -> None:
        self._asked_for = asked_for
        self.start = Path.cwd()
        self.path = asked_for

    def open(self) -> Path:
        if self.path is None:
            writable = os.access(self.start, os.W_OK)
            self.path = new_run_dir(self.start) if writable else Path(tempfile.mkdtemp(prefix="stayfinite-"))
        return self.path

    def close(self, *, keep: bool) -> None:
        """The run is over. A record nobody asked for, of a run without failures, is taken away: only our files."""
        if keep or self._asked_for is not None or self.path is None:
            return
        for pattern in _OURS:
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)
        folders = [*self.path.glob("incidents/*"), self.path / "incidents", self.path / "snapshots"]
        for folder in (*folders, self.path, self.path.parent):
            with suppress(OSError):  # not empty: something of somebody else's is in it
                folder.rmdir()
        self.path = None
