"""RunFolder: where a run's record and clean checkpoint go; unasked for, it stays only if something happened."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from stayfinite.guarding.arguments import new_run_dir, own_run_dir
from stayfinite.recover.ranks import said_by_the_first

_OURS = ("run.jsonl", "incidents/*/incident.json", "incidents/*/.incident.json.tmp", "snapshots/step-*.pt")


class RunFolder:
    """Made when the first thing is written to it. Wherever the script goes meanwhile, it is where the run began."""

    def __init__(self, asked_for: Path | None, rank: int = 0) -> None:
        self._asked_for, self._rank = asked_for, rank
        self.start = Path.cwd()
        self.path = asked_for

    @property
    def own(self) -> Path | None:
        """This rank's part of it."""
        return own_run_dir(self.path, self._rank) if self.path is not None else None

    def open(self) -> Path:
        """The folder of all ranks: the first makes it, and the others are told."""
        if self.path is None:
            self.path = Path(said_by_the_first("folder", lambda: str(self._new())))
        return self.path

    def _new(self) -> Path:
        if os.access(self.start, os.W_OK):
            return new_run_dir(self.start)
        return Path(tempfile.mkdtemp(prefix="stayfinite-"))

    def close(self, *, keep: bool, of_all_ranks: bool = False) -> None:
        """The run is over. A record nobody asked for, of a run without failures, is taken away: only our files."""
        if keep or self._asked_for is not None or self.path is None:
            return
        parts = [own_run_dir(self.path, self._rank), *(self.path.glob("rank*") if of_all_ranks else ())]
        for part in reversed(parts):
            for pattern in _OURS:
                for path in part.glob(pattern):
                    path.unlink(missing_ok=True)
            for folder in (*part.glob("incidents/*"), part / "incidents", part / "snapshots", part):
                with suppress(OSError):  # not empty: something of somebody else's is in it
                    folder.rmdir()
        for folder in (self.path, self.path.parent):
            with suppress(OSError):
                folder.rmdir()
        self.path = None
