"""A run in the words and tables of the page: the sentence at the top, forecasts, timeline, the table of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stayfinite.report.html import charts
from stayfinite.report.html.forecast_view import ForecastView
from stayfinite.report.html.incident_rows import FindingView, facts_of
from stayfinite.report.html.incident_view import IncidentView
from stayfinite.report.html.words import count, figure, sentence
from stayfinite.report.record.envelope import Envelope
from stayfinite.report.record.folder import RunContents
from stayfinite.report.record.heat import MODULES
from stayfinite.report.record.loose import items, mapping, text, whole
from stayfinite.report.record.run import RunRecord

_FORECASTS_SHOWN = 8


@dataclass(slots=True)
class Row:
    """One entry of the timeline; the same again and again is one entry."""

    first: int
    last: int
    kind: str
    words: str
    incident: str = ""
    times: int = 1
    is_shown: bool = False  # its incident stands on this page


class RunView:
    """What the templates ask for."""

    def __init__(self, contents: RunContents, *, live: bool = False) -> None:
        self.live = live
        self.name = contents.name
        self.record = contents.record or RunRecord()
        self.has_record = contents.record is not None
        self.broken_lines = contents.broken_lines
        times = self.record.times_seen
        self.incidents = [IncidentView(file, times.get(file.number, 1)) for file in contents.incidents]
        self.incidents_left_out = contents.incidents_left_out
        self.audit = _once_each(self.record.findings)

    @property
    def worst(self) -> IncidentView | None:
        """The first failure that can be shown: what came later usually follows from it."""
        return next((incident for incident in self.incidents if incident.problem is None), None)

    @property
    def healthy(self) -> bool:
        return not self.incidents and not self.record.failed and not self.record.forecasts

    @property
    def headline(self) -> str:
        if self.worst is not None:
            more = len(self.incidents) + self.incidents_left_out - 1
            return self.worst.headline + (f", and {count(more, 'other failure')}" if more else "")
        if self.record.failed:
            return f"{count(self.record.failed, 'step')} of {self.record.count:,} refused"
        if self.is_growing:
            return "Finite so far, but growing towards a limit"
        if self.record.forecasts and self.record.went_back is not None:
            return "No step failed: what grew towards a limit was undone by going back"
        if self.record.forecasts:
            return "No step failed, although something grew towards a limit"
        if self.incidents:
            return self.incidents[0].headline
        if self.record.refused:
            return "Every recorded step was applied, but for those that the loss scaler skips"
        if self.record.count:
            return "Every recorded step was finite and was applied"
        return "No step is recorded yet"

    @property
    def counts(self) -> str:
        """ "240 steps: 237 applied, 3 skipped." """
        record = self.record
        if not record.count:
            return ""
        done = [f"{record.applied:,} applied"] + [
            f"{n:,} {_DONE.get(name, name)}" for name, n in record.actions.items()
        ]
        earlier = (
            f" Earlier runs in this folder, not shown: {record.earlier_runs}." if record.earlier_runs else ""
        )
        back = f" It last went back before step {record.went_back:,}." if record.went_back is not None else ""
        return f"{count(record.count, 'step')} on record: {', '.join(done)}.{back}{earlier}"

    @property
    def ending(self) -> str:
        """What became of a run with a failure; empty while it goes on, or if nobody knows."""
        record = self.record
        if not record.closed or self.worst is None:
            return ""
        if record.actions["stop"]:
            return f"The run was stopped at step {record.last_step:,}."
        return f"The run went on and ended at step {record.last_step:,}."

    @property
    def tiles(self) -> list[tuple[str, str, str]]:
        """Label, value, and a remark."""
        record = self.record
        if not record.count:
            return []
        made = [("Last step", f"{record.last_step:,}", "")]
        made.append(("Applied", f"{record.applied:,}", f"of {record.count:,}"))
        by_scaler = record.actions["backoff"]
        made.append(
            ("Refused", f"{record.failed:,}", f"and {by_scaler:,} by the scaler" if by_scaler else "")
        )
        if "loss" in record.last:
            best = record.best_loss
            lowest = f"lowest {figure(best[0])} at step {best[1]:,}" if best else ""
            made.append(("Loss", figure(record.last.get("loss")), lowest))
        if "grad_norm" in record.last:
            made.append(("Gradient norm", figure(record.last.get("grad_norm")), ""))
        rates = items(record.last, "lr")
        if rates:
            made.append(("Learning rate", " / ".join(dict.fromkeys(figure(rate) for rate in rates[:4])), ""))
        if "scale" in record.last:
            made.append(("Loss scale", figure(record.last.get("scale")), ""))
        return made

    @property
    def forecasts(self) -> list[ForecastView]:
        """Newest first; of a failure that is shown the one that came before it, then those after."""
        made = [ForecastView(line) for line in reversed(self.record.forecasts)]
        first = self.foretold
        if first is not None:
            made = [first, *(each for each in reversed(made) if each.step > first.step)]
        return made[:_FORECASTS_SHOWN]

    @property
    def is_growing(self) -> bool:
        """The newest forecast is still one: its time is not over, and the run has not gone back since."""
        if not self.record.forecasts:
            return False
        newest, record = ForecastView(self.record.forecasts[-1]), self.record
        over = newest.high is not None and (record.last_step or 0) > newest.step + newest.high
        return not over and (record.went_back is None or newest.step >= record.went_back)

    @property
    def foretold(self) -> ForecastView | None:
        """The first forecast, if the failure at the top of the page came after it."""
        step = self.worst.step if self.worst is not None and not self.live else None
        if step is None or not self.record.forecasts:
            return None
        first = ForecastView(self.record.forecasts[0])
        return first if first.step <= step else None

    @property
    def vitals(self) -> list[tuple[str, list[str]]]:
        """The newest vitals of every module."""
        return [(name, [figure(value) for value in cell]) for name, cell in self.record.heat.last()]

    @property
    def timeline(self) -> list[Row]:
        """What is being tried on a replay is told until something else has happened; a failure that goes on has one
        incident."""
        rows: list[Row] = []
        shown = {incident.number for incident in self.incidents}
        for line in self.record.events:
            row = _row(line)
            row.is_shown = row.incident in shown
            if rows and rows[-1].kind == "proof":
                rows.pop()
            if row.incident and any(earlier.incident == row.incident for earlier in rows):
                continue
            last = rows[-1] if rows else None
            if last is not None and (last.kind, last.words, last.incident) == (
                row.kind,
                row.words,
                row.incident,
            ):
                last.last, last.times = row.first, last.times + 1
            else:
                rows.append(row)
        return rows

    @property
    def numbers(self) -> list[tuple[str, str, str, int, int]]:
        """Quantity, least, greatest, NaN, Inf: the plots as a table."""
        made = []
        keys = list(self.record.series)
        for quantity in charts.quantities(keys):
            for key in keys:
                if key[0] == quantity:
                    name = charts.title(quantity) + (f", {charts.label(key)}" if key[1] else "")
                    made.append((name, *_summary(self.record.series[key])))
        return made

    @property
    def environment(self) -> list[tuple[str, str]]:
        return facts_of(self.record.environment)

    @property
    def remarks(self) -> list[str]:
        """What this page does not show."""
        made = []
        # the live page says it in its head, as soon as it is so
        if self.record.was_abandoned and not self.live:
            made.append(
                "The run ended without closing: its process is gone, killed or crashed. "
                "Steps of its last second may be missing."
            )
        if self.broken_lines:
            were = "was" if self.broken_lines == 1 else "were"
            made.append(
                f"{count(self.broken_lines, 'line')} of run.jsonl could not be read and {were} left out."
            )
        if self.record.series_left_out:
            left = ", ".join(" ".join(key).strip() for key in sorted(self.record.series_left_out)[:5])
            made.append(f"There are more quantities than plots; left out: {left}.")
        if self.record.events_left_out:
            made.append(
                f"{self.record.events_left_out:,} entries in the middle of the timeline are left out."
            )
        if self.record.heat.is_full:
            made.append(f"The heat map shows the first {MODULES} modules; more were sampled.")
        if self.incidents_left_out:
            are = "is" if self.incidents_left_out == 1 else "are"
            made.append(f"{count(self.incidents_left_out, 'more incident')} {are} in the folder.")
        return made


_DONE = {
    "skip": "skipped",
    "rollback": "rolled back",
    "lower-lr": "skipped with a lower learning rate",
    "stop": "stopped",
    "backoff": "skipped by the scaler",
    "leave-out": "trained without a bad component",
}


def _once_each(findings: list[dict[str, Any]]) -> list[tuple[FindingView, int]]:
    """The same finding about the same place again is one entry: the last, and how often it was said."""
    found: dict[tuple[str, str, int | None], list[dict[str, Any]]] = {}
    for finding in findings:
        found.setdefault((text(finding, "code"), text(finding, "file"), whole(finding, "line")), []).append(
            finding
        )
    return [(FindingView(same[-1]), len(same)) for same in found.values()]


def _row(line: dict[str, Any]) -> Row:
    step = whole(line, "step") or 0
    kind = text(line, "event") or text(line, "action", "step")
    words, incident = text(line, "what") or text(line, "text"), ""
    if kind == "start":
        environment = mapping(line, "environment")
        known = [
            f"{name} {text(environment, name)}" for name in ("torch", "device") if text(environment, name)
        ]
        words = "The run starts" + (f" ({', '.join(known)})" if known else "")
    elif kind == "end":
        words = "The run has ended and closed its record"
    elif kind == "finding":
        finding = mapping(line, "finding")
        words = f"{text(finding, 'code')} {text(finding, 'name')}: {text(finding, 'message')}"
    elif kind == "incident":
        incident = text(line, "incident")
        words = f"incident {incident}"
    elif kind == "forecast":
        words = ForecastView(line).sentence
    elif kind == "backoff" and not words:
        words = f"the gradients overflowed at a loss scale of {figure(line.get('scale'))}; the scaler skipped the step"
    elif not words:
        rest = {key: value for key, value in line.items() if key not in ("event", "step", "action")}
        words = "; ".join(f"{key} {value}" for key, value in facts_of(rest)[:8])
    return Row(step, step, kind, words if incident else sentence(words), incident)


def _summary(envelope: Envelope) -> tuple[str, str, int, int]:
    buckets = envelope.buckets.values()
    lows = [bucket[0] for bucket in buckets if bucket[0] is not None]
    highs = [bucket[1] for bucket in buckets if bucket[1] is not None]
    nan, inf = sum(bucket[2] for bucket in buckets), sum(bucket[3] + bucket[4] for bucket in buckets)
    return figure(min(lows, default=None)), figure(max(highs, default=None)), nan, inf
