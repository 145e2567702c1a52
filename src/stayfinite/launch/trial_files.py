"""TrialFiles: what one trial does to files is undone before the next. A checkpoint that one of them has written is
not for another one to resume from."""

from __future__ import annotations

import json
from pathlib import Path

from stayfinite.launch.file_changes import FileChanges
from stayfinite.launch.options import Options
from stayfinite.sandbox.past import Past


class TrialFiles:
    """Observed by the forked child, put back by the process that forked it: both live in a copy of all files."""

    def __init__(self, told: Path) -> None:
        """`told`: where the child says what it did."""
        self._told = told
        self._changes: FileChanges | None = None

    def observe(self, options: Options) -> FileChanges:
        """In the child: note from now on what happens to files."""
        self._changes = FileChanges()
        beside = str(Path(options.target).parent) if Path(options.target).is_file() else "."
        given = [argument.rpartition("=")[2] for argument in options.arguments]
        self._changes.start([".", beside, *(name for name in given if name and Path(name).is_dir())])
        return self._changes

    def tell(self) -> None:
        """In the child, when it is over."""
        if self._changes is not None:
            past, _ = self._changes.past()
            self._told.write_text(json.dumps(past.to_json()), encoding="utf-8")

    def put_back(self) -> None:
        """When the child has ended. One that was killed told nothing; then there is no time for another."""
        if self._told.exists():
            Past.from_json(json.loads(self._told.read_text(encoding="utf-8"))).put_in_place()
            self._told.unlink()
