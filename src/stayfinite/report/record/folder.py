"""A run folder or an incident folder, opened: its incidents and its record. What cannot be shown is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stayfinite.report.record.lines import NAME, read_batches, record_files
from stayfinite.report.record.loose import whole
from stayfinite.report.record.run import RunRecord

INCIDENTS = "incidents"
INCIDENT = "incident.json"
INCIDENTS_SHOWN = 50
_LARGEST = 64 << 20


class NothingToShow(Exception):
    """The folder holds nothing a page could show; the message says what was looked for and what to do."""


@dataclass(slots=True)
class IncidentFile:
    """One incidents/NNNN: its JSON as it is, or why it could not be read."""

    folder: Path
    data: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def number(self) -> str:
        return self.folder.name

    @property
    def step(self) -> int | None:
        return whole(self.data, "step")

    @property
    def has_capsule(self) -> bool:
        """Whether the step can be run again offline."""
        return (self.folder / "capsule").is_dir()


@dataclass(slots=True)
class RunContents:
    """What a page shows: the incidents and, where there is one, the record of all steps."""

    path: Path
    incidents: list[IncidentFile]
    record: RunRecord | None = None
    broken_lines: int = 0
    incidents_left_out: int = 0

    @property
    def name(self) -> str:
        return self.path.resolve().name or str(self.path)


def read_incident(folder: Path) -> IncidentFile:
    """Never raises: a problem becomes part of what is shown."""
    path = folder / INCIDENT
    try:
        if not path.is_file():
            return IncidentFile(folder, problem=f"{path} does not exist")
        if path.stat().st_size > _LARGEST:
            return IncidentFile(
                folder, problem=f"{path} is larger than {_LARGEST >> 20} MB: no incident of ours"
            )
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        return IncidentFile(folder, problem=f"{path} cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError):
        return IncidentFile(folder, problem=f"{path} is not whole: it holds no valid JSON")
    if not isinstance(data, dict) or whole(data, "step") is None:
        return IncidentFile(folder, problem=f"{path} is not an incident: it names no step")
    return IncidentFile(folder, data)


def incident_folders(run_dir: Path) -> list[Path]:
    """The incidents of a run in the order in which they were numbered."""
    try:
        folders = [path for path in (run_dir / INCIDENTS).iterdir() if path.name.isdecimal()]
    except OSError:  # none so far
        return []
    return sorted(folders, key=lambda path: (int(path.name), path.name))


def is_run_folder(path: Path) -> bool:
    """Whether a folder that may be read holds a run."""
    try:
        return path.is_dir() and (bool(record_files(path)) or (path / INCIDENTS).is_dir())
    except OSError:  # somebody else's
        return False


def runs_in(path: Path) -> list[Path]:
    """The run folders directly in a folder, newest first."""
    try:
        children = list(path.iterdir())
    except OSError:  # not there, or not ours to read
        return []
    return sorted(filter(is_run_folder, children), key=_changed, reverse=True)


def _changed(run_dir: Path) -> float:
    times = [0.0]
    for path in (run_dir / NAME, run_dir / INCIDENTS, run_dir):
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # gone, or never there
            continue
    return max(times)


def open_folder(path: Path, advance: Callable[[int], None] = lambda nbytes: None) -> RunContents:
    """Read all there is. Raises NothingToShow, with one sentence, where that is nothing."""
    try:
        return _read(_meant(path), advance)
    except OSError as error:
        raise NothingToShow(f"{error.filename or path} cannot be read: {error.strerror or error}.") from error


def _read(path: Path, advance: Callable[[int], None]) -> RunContents:
    if (path / INCIDENT).exists():
        incident = read_incident(path)
        if incident.problem is not None:
            raise NothingToShow(
                f"{incident.problem}. Run the training again, or name another incident folder."
            )
        return RunContents(path, [incident])
    if not is_run_folder(path):
        raise NothingToShow(_nothing_in(path))
    folders = incident_folders(path)
    contents = RunContents(path, [read_incident(folder) for folder in folders[:INCIDENTS_SHOWN]])
    contents.incidents_left_out = len(folders) - len(contents.incidents)
    record = RunRecord()
    for batch in read_batches(path):
        record.feed(batch.lines)
        contents.broken_lines += batch.broken
        advance(batch.nbytes)
    if record.count or record.events_seen or record.heat.columns:
        contents.record = record
    elif all(incident.problem is not None for incident in contents.incidents):
        raise NothingToShow(
            f"{path} has nothing to show: {_why_empty(contents)}. Name the folder of a run that has begun."
        )
    return contents


def _why_empty(contents: RunContents) -> str:
    if contents.broken_lines:
        return f"none of the {contents.broken_lines} lines of {NAME} is one of ours"
    return f"{NAME} holds no step yet" if record_files(contents.path) else "its incidents cannot be read"


def _meant(path: Path) -> Path:
    """The folder, also where one of its files was named."""
    if path.is_file():
        if path.name in (NAME, INCIDENT):
            return path.parent
        raise NothingToShow(
            f"{path} is a file; name the folder of a run, which holds {NAME} and {INCIDENTS}/."
        )
    if not path.is_dir():
        raise NothingToShow(
            f"{path} does not exist; name the folder of a run, for example stayfinite-runs/NAME."
        )
    return path


def _nothing_in(path: Path) -> str:
    runs = runs_in(path)
    if runs:
        return f"{path} holds {len(runs)} runs; name one of them, for example the newest, {runs[0]}."
    return f"{path} holds no {NAME} and no {INCIDENTS}/; name the folder of a run, for example stayfinite-runs/NAME."
