"""incidents/NNNN/incident.json: one folder a failure. The same failure again is counted, not listed again."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

from stayfinite.findings import Incident, dumps


class Filed(NamedTuple):
    """Where an incident went: its number, and how often it has been seen."""

    number: str
    times: int


class IncidentFolder:
    """Numbers the failures of a run and writes each one whole; without a folder it only counts them."""

    def __init__(self, run_dir: Path | None) -> None:
        self.root = run_dir / "incidents" if run_dir is not None else None
        existing = self.root.glob("[0-9]*") if self.root is not None else ()
        self._count = max((int(path.name) for path in existing if path.name.isdigit()), default=0)
        self._seen: dict[tuple[object, ...], Filed] = {}
        self._last: tuple[object, ...] | None = None

    def file(self, incident: Incident, *, goes_on: bool) -> Filed:
        """Write a new incident, or count one that is known; `goes_on`: the streak of the last one continues."""
        key = self._last if goes_on and self._last is not None else _identity(incident)
        known = self._seen.get(key)
        if known is None:
            self._count += 1
            known = Filed(f"{self._count:04d}", 0)
            if self.root is not None:
                self._write(incident, self.root / known.number)
        self._seen[key] = Filed(known.number, known.times + 1)
        self._last = key
        return self._seen[key]

    @staticmethod
    def _write(incident: Incident, folder: Path) -> None:
        temporary = folder / ".incident.json.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(dumps(incident.to_json(), indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / "incident.json")
        except OSError as error:
            warnings.warn(
                f"stayfinite could not write {folder}: {error.strerror or error}. The step was refused all the same.",
                RuntimeWarning,
                stacklevel=2,
            )


def _identity(incident: Incident) -> tuple[object, ...]:
    """What makes two failures the same: the op and line of birth, or without one what tripped and its cause."""
    if incident.birth is not None:
        return incident.trigger, incident.birth.op, incident.birth.file, incident.birth.line
    return incident.trigger, incident.phase, tuple(finding.code for finding in incident.findings)
