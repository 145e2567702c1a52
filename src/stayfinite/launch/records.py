"""Writes incidents: one JSON document for programs, a folder per incident in the run directory."""

from __future__ import annotations

from pathlib import Path

from stayfinite.findings import Incident, dumps
from stayfinite.launch.options import Options
from stayfinite.report.html.incident_page import write_incident_page

SCHEMA = 1


def write(options: Options, run_dir: Path | None, incidents: list[Incident]) -> None:
    """Write what was asked for: --output, and incidents/NNNN/ in the folder of the run."""
    if options.output is not None and options.form == "json":
        document = {"schema": SCHEMA, "incidents": [incident.to_json() for incident in incidents]}
        _write_whole(options.output, dumps(document, indent=2) + "\n")
    if run_dir is not None:
        for number, incident in enumerate(incidents, start=1):
            folder = run_dir / "incidents" / f"{number:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            _write_whole(folder / "incident.json", dumps(incident.to_json(), indent=2) + "\n")
            write_incident_page(folder)


def _write_whole(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
