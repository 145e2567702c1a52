"""A log as one HTML page: curves in inline SVG on log axes, findings as a table. Nothing is loaded from anywhere."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from stayfinite.findings import Finding
from stayfinite.findings.subjects.log import Log
from stayfinite.report.log_panels import Mark, Panel, by_steps, marks, panels

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 200, 70, 12, 24, 26
_COLOURS = {"nonfinite": "#c0392b", "spike": "#d35400", "scale-fell": "#8e44ad", "resume": "#2471a3", "skip": "#b7950b",
            "rate-jump": "#117a65"}  # fmt: skip
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1000px;color:#1b1b1b;background:#fff;padding:0 12px}
h1{font-size:20px}h2{font-size:15px;margin:28px 0 4px}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ddd;padding:5px 8px;text-align:left;vertical-align:top}
svg{width:100%;height:auto;display:block}.error{color:#b03a2e;font-weight:600}.warning{color:#9a6700}.info{color:#1f6391}
.note{color:#555}text{font:11px system-ui,sans-serif;fill:#444}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e6e6e6}td,th{border-color:#333}text{fill:#bbb}.note{color:#aaa}}
"""


def render(results: Sequence[tuple[Log, Sequence[Finding]]], also: Sequence[str] = ()) -> str:
    """The page."""
    body = "".join(_log(log, findings, also) for log, findings in results)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>stayfinite logs</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _log(log: Log, findings: Sequence[Finding], also: Sequence[str]) -> str:
    steps = (
        f"steps {log.first_step:g} to {log.last_step:g}, "
        if log.counted and log.first_step is not None
        else ""
    )
    made = [
        f"<h1>{html.escape(log.path)}</h1><p class='note'>{html.escape(log.format)}, {steps}{log.records} records</p>"
    ]
    if findings:
        rows = "".join(
            f"<tr><td class='{f.severity.value}'>{f.severity.value}</td><td>{f.code}</td>"
            f"<td>{html.escape(f.message)}<br><span class='note'>{html.escape(f.fix)}</span></td></tr>"
            for f in findings
        )
        made.append(f"<table><tr><th></th><th>rule</th><th>finding</th></tr>{rows}</table>")
    else:
        made.append("<p>Nothing was found.</p>")
    shown = panels(log, also, most=24)
    xs = [x for panel in shown for x in panel.x]
    events = marks(log)
    for panel in shown:
        made.append(_svg(panel, events, min(xs), max(xs), "step" if by_steps(log) else "record"))
    return "".join(made)


def _svg(panel: Panel, events: Sequence[Mark], low: float, high: float, what: str) -> str:
    bottom, top = panel.bounds()
    scale = math.log10 if panel.logarithmic else float
    span = (scale(top) - scale(bottom)) or 1.0
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + (x - low) / ((high - low) or 1) * inner_width

    def down(value: float) -> float:
        return _TOP + (1 - (scale(value) - scale(bottom)) / span) * inner_height

    parts = [
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{html.escape(panel.name, quote=True)}'>"
    ]
    for tick in _ticks(bottom, top, panel.logarithmic):
        y = down(tick)
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#8884' stroke-width='1'/>"
            f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{tick:.3g}</text>"
        )
    for mark in events:
        parts.append(
            f"<line x1='{across(mark.x):.1f}' x2='{across(mark.x):.1f}' y1='{_TOP}' y2='{_HEIGHT - _BOTTOM}' "
            f"stroke='{_COLOURS[mark.what]}' stroke-width='1.2' stroke-dasharray='3 3'>"
            f"<title>{html.escape(mark.text)}</title></line>"
        )
    band, line = _paths(panel, across, down)
    parts.append(f"<path d='{band}' fill='#2e86c144' stroke='none'/>")
    parts.append(f"<path d='{line}' fill='none' stroke='#2e86c1' stroke-width='1.6'/>")
    for x in _thin([across(x) for x in panel.bad]):
        parts.append(
            f"<path d='M{x - 4:.1f} {_TOP - 9}l8 8m0 -8l-8 8' stroke='#c0392b' stroke-width='2'>"
            "<title>not finite</title></path>"
        )
    axis = "log axis" if panel.logarithmic else "linear axis"
    parts.append(f"<text x='{_LEFT}' y='12' font-weight='600'>{html.escape(panel.name)} ({axis})</text>")
    parts.append(f"<text x='{_LEFT}' y='{_HEIGHT - 8}'>{what} {low:g}</text>")
    parts.append(f"<text x='{_WIDTH - _RIGHT}' y='{_HEIGHT - 8}' text-anchor='end'>{high:g}</text></svg>")
    return "".join(parts)


def _paths(panel: Panel, across: Callable[[float], float], down: Callable[[float], float]) -> tuple[str, str]:
    """The band from low to high and the line of means; both are interrupted where nothing is finite."""
    band: list[str] = []
    line: list[str] = []
    stretch: list[int] = []

    def close() -> None:
        if not stretch:
            return
        line.append(
            "M" + "L".join(f"{across(panel.x[i]):.1f} {down(_positive(panel, i)):.1f}" for i in stretch)
        )
        there = "L".join(f"{across(panel.x[i]):.1f} {down(panel.high[i]):.1f}" for i in stretch)
        back = "L".join(f"{across(panel.x[i]):.1f} {down(panel.low[i]):.1f}" for i in reversed(stretch))
        band.append(f"M{there}L{back}Z")
        if len(stretch) == 1:
            x, y = across(panel.x[stretch[0]]), down(_positive(panel, stretch[0]))
            line.append(f"M{x - 1.5:.1f} {y:.1f}h3")
        stretch.clear()

    for index, mean in enumerate(panel.mean):
        if math.isnan(mean):
            close()
        else:
            stretch.append(index)
    close()
    return "".join(band), "".join(line)


def _positive(panel: Panel, index: int) -> float:
    """The mean; on a log axis never below the lowest value (rounding)."""
    return max(panel.mean[index], panel.low[index])


def _thin(places: Sequence[float]) -> list[float]:
    """At most one mark every three pixels."""
    made: list[float] = []
    for place in places:
        if not made or place - made[-1] >= 3:
            made.append(place)
    return made


def _ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    if logarithmic:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        powers = [10.0**power for power in range(first, last + 1)]
        return powers[:: max(1, len(powers) // 5)] if len(powers) >= 2 else [low, high]
    return [low + (high - low) * share / 4 for share in range(5)]
