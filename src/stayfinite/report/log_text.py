"""Logs as text: what each one is, its chart, its findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from stayfinite.findings import Finding
from stayfinite.findings.subjects.log import Log, Role
from stayfinite.report.checkpoints import size
from stayfinite.report.html.words import count
from stayfinite.report.log_chart import chart
from stayfinite.report.text import lines, tally

_SHOWN = (Role.LOSS, Role.EVALUATION, Role.NORM, Role.RATE, Role.SCALE)


def heading(log: Log) -> Text:
    """The path, its format, and how long it is."""
    parts = [log.format, size(log.nbytes), count(log.records, "record")]
    if log.counted and log.first_step is not None and log.last_step is not None:
        parts.append(f"steps {log.first_step:g} to {log.last_step:g}")
    line = Text(log.path, style="bold")
    line.append(f"  ({', '.join(parts)})", style="not bold dim")
    return line


def quantities(log: Log) -> list[Text]:
    """First, lowest, highest and last value of the main series, in one line each."""
    made: list[Text] = []
    for role in _SHOWN:
        series = log.main(role)
        if series is None or series.first is None or series.last is None:
            continue
        spread = f", {series.minimum:.4g} to {series.maximum:.4g}" if series.minimum < series.maximum else ""
        bad = f", {series.bad} not finite" if series.bad else ""
        made.append(
            Text(
                f"  {series.name:<16} {series.first.value:.4g} at first, {series.last.value:.4g} at last{spread}{bad}"
            )
        )
    return made


def log_lines(
    results: Sequence[tuple[Log, Sequence[Finding]]],
    *,
    everything: bool = False,
    width: int = 0,
    also: tuple[str, ...] = (),
) -> list[RenderableType]:
    """All logs in the order given; with a `width`, each with a chart."""
    made: list[RenderableType] = []
    for log, findings in results:
        made += [heading(log), *quantities(log)]
        if width:
            made += chart(log, width, also)
        made += lines(findings, everything=everything)
        if not findings:
            made.append(Text("  nothing found", style="green"))
    if len(results) > 1:
        made.append(
            Text(f"{len(results)} logs: {tally([f for _, found in results for f in found])}", style="bold")
        )
    return made
