"""incidents/NNNN/incident.json: one folder a failure."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from stayfinite.findings import Incident, dumps


class IncidentFolder:
    """Numbers the failures of a run and writes each one whole."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / "incidents"
        existing = [int(path.name) for path in self._root.glob("[0-9]*") if path.name.isdigit()]
        self._count = max(existing, default=0)

    def write(self, incident: Incident) -> Path | None:
        """Write the next incident; None (and a warning) if the directory cannot be written."""
        folder = self._root / f"{self._count + 1:04d}"
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
            return None
        self._count += 1
        return folder / "incident.json"
