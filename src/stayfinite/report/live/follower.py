"""RunFollower: reads what a run has written since the last look, and tells pages what changed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from stayfinite.findings import Json
from stayfinite.report.html import charts
from stayfinite.report.html.page import FRAGMENTS, fragment, incident_fragment, render_live, run_data
from stayfinite.report.html.run_view import RunView
from stayfinite.report.record.folder import (
    INCIDENT,
    INCIDENTS_SHOWN,
    IncidentFile,
    RunContents,
    incident_folders,
    read_incident,
)
from stayfinite.report.record.lines import Batch, Tail, read_rotated, record_files
from stayfinite.report.record.run import RunRecord

_AT_ONCE = 8
"""Batches of a megabyte between two messages: a page of a long run fills as it is read."""

_LONG_TABLES = ("numbers", "vitals", "timeline")
_LONG_TABLES_SECONDS = 2.0

_LAST_WORDS_SECONDS = 2.0
"""What a process wrote before it ended has been read by then."""


class RunFollower:
    """One for each run folder, shared by all pages that show it; safe to call from several threads."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir
        self.record = RunRecord()
        self.broken = 0
        self.changed = time.monotonic()
        self._tail = Tail(run_dir)
        self._rotated = False
        self._incidents: dict[str, tuple[float, IncidentFile]] = {}
        self._left_out = 0
        self._sent_charts: set[str] = set()
        self._sent_fragments: dict[str, Json] = {}
        self._fragments_due = True
        self._long_tables = -_LONG_TABLES_SECONDS
        self._made: dict[str, tuple[object, str]] = {}
        self._generation = self.record.generation
        self._lock = threading.Lock()

    def poll(self) -> bool:
        """Read on. True if there is more to read at once."""
        with self._lock:
            return self._read_lines() | self._read_incidents()

    def page(self, address: str) -> str:
        """The page to begin with; events from `address` go on."""
        with self._lock:
            return render_live(self.view(), address)

    def view(self) -> RunView:
        """The run as it is known now; only valid until the next poll."""
        incidents = [file for _, file in self._incidents.values()]
        has_record = self.record.count or self.record.events_seen
        record = self.record if has_record else None
        contents = RunContents(self.path, incidents, record, self.broken, self._left_out)
        return RunView(contents, live=True)

    @property
    def quiet_seconds(self) -> float:
        """Since when nothing new was written."""
        return time.monotonic() - self.changed

    @property
    def fate(self) -> str:
        """ "closed" by itself, "abandoned" (its process is gone, which may also have just closed it), or "" so far."""
        if self.record.closed:
            return "closed"
        waited = self.quiet_seconds > _LAST_WORDS_SECONDS
        return "abandoned" if waited and self.record.was_abandoned else ""

    @property
    def has_begun(self) -> bool:
        return bool(self.record.count or self.record.events_seen or self._incidents)

    def whole(self) -> dict[str, Json]:
        """For a page that begins to show the run."""
        with self._lock:
            view = self.view()
            return {
                "whole": True,
                "step": self.record.last_step,
                **run_data(view),
                "fragments": {
                    **{name: fragment(name, view) for name in FRAGMENTS},
                    **self._incident_fragments(view),
                },
            }

    def changes(self) -> dict[str, Json] | None:
        """For the pages that show it already: what is new since the last call; None if nothing is."""
        if self._generation != self.record.generation:
            self._generation = self.record.generation
            self._sent_charts.clear()
            return self.whole()
        with self._lock:
            view = self.view()
            made = self._chart_changes(view)
            if made or not self._sent_fragments:
                self._fragments_due = True
            fragments = self._fragment_changes(view) if self._fragments_due else {}
            if fragments:
                made["fragments"] = fragments
            return {**made, "step": self.record.last_step} if made else None

    def _chart_changes(self, view: RunView) -> dict[str, Json]:
        series: dict[str, Any] = {}
        for key, envelope in self.record.series.items():
            patch = envelope.take_changes()
            if patch is not None:
                series.setdefault(charts.chart_id(key[0]), {})[charts.label(key)] = patch
        acted = {
            action: patch for action, e in self.record.action_steps.items() if (patch := e.take_changes())
        }
        found: dict[str, Any] = {
            "series": series,
            "charts": self._new_charts(view, set(series)),
            "actions": acted,
            "heat": self.record.heat.take_changes(),
        }
        return {name: value for name, value in found.items() if value}

    def _new_charts(self, view: RunView, changed: set[str]) -> list[dict[str, Json]]:
        """Plots that no page has yet: of quantities seen for the first time, and of new incidents."""
        found = [chart for i in view.incidents if i.group not in self._sent_charts for chart in i.charts]
        if not changed <= self._sent_charts:
            found += [
                chart for chart in charts.record_charts(self.record) if chart["id"] not in self._sent_charts
            ]
        self._sent_charts |= {str(chart["id"]) for chart in found} | {i.group for i in view.incidents}
        return found

    def _fragment_changes(self, view: RunView) -> dict[str, Json]:
        """Long tables are made anew every few seconds only; they cost more than the plots."""
        long_ones = time.monotonic() - self._long_tables > _LONG_TABLES_SECONDS
        if long_ones:
            self._long_tables, self._fragments_due = time.monotonic(), False
        made: dict[str, Json] = {
            name: fragment(name, view) for name in FRAGMENTS if long_ones or name not in _LONG_TABLES
        }
        made |= self._incident_fragments(view)
        changed = {name: html for name, html in made.items() if self._sent_fragments.get(name) != html}
        self._sent_fragments |= changed
        return changed

    def _incident_fragments(self, view: RunView) -> dict[str, Json]:
        made: dict[str, Json] = {}
        for incident in view.incidents:
            state = (incident.file, incident.times, len(view.incidents), view.has_record)
            known = self._made.get(incident.number)
            if known is None or known[0] != state:
                known = self._made[incident.number] = (state, incident_fragment(incident, view))
            made[f"incident-{incident.number}"] = known[1]
        return made

    def _read_lines(self) -> bool:
        if not self._rotated and record_files(self.path):  # before that a folder may come, and be rotated
            self._rotated = True
            try:
                for old in read_rotated(self.path):
                    self._feed(old)
            except OSError:  # rotated again meanwhile, or not ours to read
                self.broken += 1
        for _ in range(_AT_ONCE):
            batch = self._tail.read()
            if batch is None:
                return False
            self._feed(batch)
            self.changed = time.monotonic()
        return True

    def _feed(self, batch: Batch) -> None:
        self.record.feed(batch.lines)
        self.broken += batch.broken

    def _read_incidents(self) -> bool:
        """New folders, and those whose file was written (again) since."""
        folders = incident_folders(self.path)
        self._left_out = max(0, len(folders) - INCIDENTS_SHOWN)
        for folder in folders[:INCIDENTS_SHOWN]:
            try:
                written = (folder / INCIDENT).stat().st_mtime
            except OSError:  # the folder is there, its file not yet
                continue
            known = self._incidents.get(folder.name)
            if known is None or known[0] != written:
                self._incidents[folder.name] = (written, read_incident(folder))
        return False
