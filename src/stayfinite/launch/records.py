"""Writes incidents: one JSON document for programs, a folder per incident in the run directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from stayfinite.findings import Incident, dumps
from stayfinite.launch.options import Options
from stayfinite.launch.session import place_of

SCHEMA = 1
_ERROR_SHOWN = 300


def write(options: Options, run_dir: Path | None, incidents: list[Incident]) -> None:
    """Write what was asked for: --output, and incidents/NNNN/ in the folder of the run."""
    if options.output is not None:
        document = {"schema": SCHEMA, "incidents": [incident.to_json() for incident in incidents]}
        _write_whole(options.output, dumps(document, indent=2) + "\n")
    if run_dir is not None and incidents:
        from stayfinite.report.html.incident_page import write_incident_page  # needed by a failure only

        for number, incident in enumerate(incidents, start=1):
            folder = run_dir / "incidents" / f"{number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            _write_whole(folder / "incident.json", dumps(incident.to_json(), indent=2) + "\n")
            write_incident_page(folder)


def write_end(path: Path, step: int, error: BaseException | None) -> None:
    """In a second run: how far it came, and the error that ended it."""
    said = None
    if error is not None:
        place = place_of(error)
        where = f" at {Path(place.file).name}:{place.line}" if place.file else ""
        said = f"{type(error).__name__}{where}: {error}".partition("\n")[0][:_ERROR_SHOWN]
    _write_whole(path, dumps({"step": step, "error": said}))


def _write_whole(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".stayfinite-", delete=False
    ) as handle:
        handle.write(text)
    Path(handle.name).chmod(0o644)
    Path(handle.name).replace(path)
