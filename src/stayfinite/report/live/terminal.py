"""The terminal twin of the live page: the same run, as text that redraws itself."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stayfinite.report.html import charts
from stayfinite.report.html.run_view import RunView
from stayfinite.report.html.words import figure
from stayfinite.report.live.follower import RunFollower
from stayfinite.report.live.heat_text import heat_strips
from stayfinite.report.progress import describe
from stayfinite.report.record.envelope import Envelope
from stayfinite.report.record.folder import is_run_folder, runs_in
from stayfinite.report.terminal import console

_SECONDS = 0.5
_PLAIN_SECONDS = 5.0
_LEVELS = "▁▂▃▄▅▆▇█"
_DRAWN = ("loss", "components", "grad_norm", "lr", "scale", "update_ratio", "largest output")
_MODULES, _ROWS = 6, 8


def show_in_terminal(root: Path) -> None:
    """Until Ctrl-C. Of a folder of runs the newest is shown; where there is none yet, it is waited for."""
    out = console()
    try:
        if out.is_terminal:
            _redraw(root, out)
        else:
            _print_lines(root, out)
    except KeyboardInterrupt:
        return


def _redraw(root: Path, out: Console) -> None:
    follower: RunFollower | None = None
    with Live(console=out, auto_refresh=False, screen=True) as live:
        while True:
            follower = _newest(root, follower)
            while follower.poll():
                live.update(Text(f"reading {follower.path}: step {follower.record.last_step}"), refresh=True)
            live.update(picture(follower, out.width, out.height), refresh=True)
            time.sleep(_SECONDS)


def _print_lines(root: Path, out: Console) -> None:
    """Where nothing can be redrawn: a line now and then, and every event once."""
    follower: RunFollower | None = None
    told = 0
    fate: tuple[RunFollower, int | None] | None = None  # of which run it was said, and at which step
    step: int | None = None
    while True:
        follower = _newest(root, follower)
        while follower.poll():
            continue
        record = follower.record
        if record.last_step != step:
            step = record.last_step
            counts = {
                "applied": record.applied,
                "skipped": record.refused,
                "rolled_back": record.actions["rollback"],
            }
            out.print(Text(describe(record.last, counts)), soft_wrap=True)
        rows = follower.view().timeline
        for row in rows[told:]:
            out.print(Text(f"step {row.first}: {row.kind} {row.words}"), soft_wrap=True)
        told = len(rows)
        if follower.fate == "abandoned" and fate != (follower, step):
            out.print(Text(_FATES["abandoned"]), soft_wrap=True)
            fate = (follower, step)
        time.sleep(_PLAIN_SECONDS)


def _newest(root: Path, current: RunFollower | None) -> RunFollower:
    """The run itself, or the newest of several; a new one replaces the one that is shown."""
    runs = [] if is_run_folder(root) else runs_in(root)
    chosen = runs[0] if runs else root
    return current if current is not None and current.path == chosen else RunFollower(chosen)


def picture(follower: RunFollower, width: int, height: int) -> RenderableType:
    """One screen."""
    view = follower.view()
    parts: list[RenderableType] = [Text(f"stayfinite  {follower.path}", style="dim")]
    if not follower.has_begun:
        return Group(*parts, Text("waiting for the run to begin"))
    parts.append(Text(view.headline, style="bold green" if view.healthy else "bold red"))
    if view.worst is not None:
        parts.append(Text(view.worst.began.replace("`", "")))
        parts += [Text(f"What to do: {finding.fix}", style="green") for finding in view.worst.findings[:1]]
    quiet = follower.quiet_seconds
    parts.append(Text(f"{view.counts} {_FATES.get(follower.fate) or _since(quiet)}".rstrip()))
    parts += [Text(f"Forecast: {f.sentence.replace('`', '')}", style="yellow") for f in view.forecasts[:1]]
    parts.append(_plots(view, max(10, width - 50)))
    parts += list(heat_strips(view.record, _MODULES, max(8, width - 68)))
    parts.append(_events(view, max(2, min(_ROWS, height - 22))))
    return Group(*parts)


_FATES = {
    "closed": "The run has ended.",
    "abandoned": "The run ended without closing: its process is gone, killed or crashed.",
}


def _since(quiet: float) -> str:
    return f"Nothing new for {quiet:.0f} s." if quiet > 15 else ""


def _plots(view: RunView, width: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    order = charts.quantities(list(view.record.series))
    drawn = [
        (key, e)
        for name in order
        if name in _DRAWN
        for key, e in view.record.series.items()
        if key[0] == name
    ]
    for key, envelope in drawn:
        name = charts.title(key[0]) + (f", {charts.label(key)}" if key[1] else "")
        last = _last(envelope)
        style = "bold red" if last in _BAD else "bold"
        grid.add_row(Text(name[:30]), Text(last, style=style), spark(envelope, width))
    return grid


_BAD = ("NaN", "Inf", "−Inf")


def _last(envelope: Envelope) -> str:
    bucket = envelope.buckets[max(envelope.buckets)]
    bad = [name for name, count in zip(_BAD, bucket[2:], strict=True) if count]
    return bad[0] if bad else figure(bucket[1])


def spark(envelope: Envelope, width: int) -> Text:
    """The series in one line: the greatest of each column, by logarithm where all are positive; × NaN, ! Inf."""
    first, last = min(envelope.buckets), max(envelope.buckets)
    columns: dict[int, list[list[float | None]]] = {}
    for number, bucket in envelope.buckets.items():
        columns.setdefault((number - first) * width // (last - first + 1), []).append(bucket)
    tops = {at: max((b[1] for b in found if b[1] is not None), default=None) for at, found in columns.items()}
    known = [value for value in tops.values() if value is not None]
    log = bool(known) and min(known) > 0 and max(known) > 3 * min(known)
    heights = {at: math.log(value) if log else value for at, value in tops.items() if value is not None}
    low, high = min(heights.values(), default=0.0), max(heights.values(), default=0.0)
    line = Text()
    for at in range(min(width, last - first + 1) if last > first else 1):
        found = columns.get(at, [])
        if any(bucket[2] for bucket in found):
            line.append("×", style="bold red")
        elif any(bucket[3] or bucket[4] for bucket in found):
            line.append("!", style="bold yellow")
        elif at in heights:
            share = (heights[at] - low) / (high - low) if high > low else 0.0
            line.append(_LEVELS[min(int(share * len(_LEVELS)), len(_LEVELS) - 1)], style="blue")
        else:
            line.append(" ")
    return line


def _events(view: RunView, rows: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    for row in view.timeline[-rows:]:
        times = f" × {row.times}" if row.times > 1 else ""
        grid.add_row(
            Text(f"{row.first:,}", justify="right"),
            Text(row.kind + times),
            Text(row.words, overflow="ellipsis", no_wrap=True),
        )
    return grid
