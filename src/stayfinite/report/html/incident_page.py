"""incidents/NNNN/report.html, written at a failure. A page that cannot be written must not harm the run."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path

from stayfinite.report.record.folder import RunContents, read_incident

PAGE = "report.html"


def write_incident_page(incident_dir: Path) -> Path | None:
    """Write the page of one incident beside its incident.json; None, with a warning, if that failed."""
    try:
        from stayfinite.report.html.page import render_run  # a run that does not fail need not load templates

        incident = read_incident(incident_dir)
        if incident.problem is not None:
            return None  # who could not write incident.json has said so already
        page = incident_dir / PAGE
        write_whole(page, render_run(RunContents(incident_dir, [incident])))
    except Exception as error:  # noqa: BLE001  the run goes on whatever is wrong with its page
        warnings.warn(
            f"stayfinite could not write {incident_dir / PAGE}: {error}. The incident itself is in incident.json.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return page


def write_whole(path: Path, text: str) -> None:
    """All or nothing: a reader never sees half a page, and a failure leaves no piece behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
