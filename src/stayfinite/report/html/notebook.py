"""What a notebook shows: the heart of the page as static HTML, without a script, in the notebook's own colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stayfinite.report.html.incident_view import IncidentView
from stayfinite.report.html.page import environment
from stayfinite.report.record.folder import IncidentFile

_ALWAYS = ("steps", "applied", "skipped")


def incident_html(incident: Mapping[str, Any]) -> str:
    """An incident, as `incident.to_json()` gives it."""
    view = IncidentView(IncidentFile(Path("notebook"), dict(incident)))
    return environment().get_template("notebook_incident.html").render(incident=view)


def guard_html(
    counts: Mapping[str, int],
    history: Sequence[Mapping[str, Any]],
    record: Path | str,
    incident: Mapping[str, Any] | None,
) -> str:
    """A guard: its counts (`applied`, `skipped`, ...), its last steps, where its record is, and its last incident."""
    recent = [line for line in history if isinstance(line, Mapping)][-8:]
    return (
        environment()
        .get_template("notebook_guard.html")
        .render(
            counts=[
                (name.replace("_", " "), value) for name, value in counts.items() if value or name in _ALWAYS
            ],
            recent=recent,
            record=str(record),
            incident=Markup(incident_html(incident)) if incident is not None else None,
        )
    )
