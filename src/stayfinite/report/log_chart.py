"""A chart of a log in the terminal: a logarithmic axis, x for values that are not finite, marks below."""

from __future__ import annotations

import math

from rich.text import Text

from stayfinite.findings.subjects.log import Log
from stayfinite.report.log_panels import Panel, by_steps, marks, panels

_ROWS = 8
_LEGEND = {"nonfinite": "!", "spike": "^", "scale-fell": "v", "resume": "R", "skip": "s", "rate-jump": "L"}
_WORDS = {
    "!": "first not finite",
    "^": "spike",
    "v": "loss scale fell",
    "R": "resume",
    "s": "skipped",
    "L": "learning rate jumped",
}


def chart(log: Log, width: int, also: tuple[str, ...] = (), most: int = 3) -> list[Text]:
    """A few panels under each other, with the same x axis."""
    shown = panels(log, also, most)
    if not shown:
        return []
    across = max(20, min(width, 110) - 12)
    xs = [x for panel in shown for x in panel.x]
    low, high = min(xs), max(xs)
    made: list[Text] = []
    for panel in shown:
        made += _draw(panel, low, high, across)
    made += _below(log, low, high, across)
    return made


def _column(x: float, low: float, high: float, across: int) -> int:
    return 0 if high <= low else min(across - 1, int((x - low) / (high - low) * across))


def _draw(panel: Panel, low: float, high: float, across: int) -> list[Text]:
    bottom, top = panel.bounds()
    scale = math.log10 if panel.logarithmic else float
    span = scale(top) - scale(bottom)
    cells: dict[tuple[int, int], str] = {}

    def row(value: float) -> int:
        share = (scale(value) - scale(bottom)) / span if span else 0.5
        return _ROWS - 1 - min(_ROWS - 1, max(0, int(share * _ROWS)))

    for x, mean, least, most in zip(panel.x, panel.mean, panel.low, panel.high, strict=True):
        if math.isnan(mean):
            continue
        column = _column(x, low, high, across)
        for between in range(row(most), row(least) + 1):
            cells.setdefault((between, column), ":")
        cells[(row(mean if mean > 0 or not panel.logarithmic else least), column)] = "*"
    bad = {_column(x, low, high, across) for x in panel.bad}
    axis = "log" if panel.logarithmic else "linear"
    made = [Text(f"{'':10}{panel.name} ({axis})", style="bold")]
    for number in range(_ROWS):
        label = f"{top:>9.3g}" if number == 0 else f"{bottom:>9.3g}" if number == _ROWS - 1 else " " * 9
        line = Text(f"{label} |")
        for column in range(across):
            if number == 0 and column in bad:
                line.append("x", style="bold red")
            else:
                cell = cells.get((number, column), " ")
                line.append(cell, style="cyan" if cell == "*" else "dim")
        line.rstrip()
        made.append(line)
    return made


def _below(log: Log, low: float, high: float, across: int) -> list[Text]:
    line = [" "] * across
    used: set[str] = set()
    for mark in reversed(marks(log)):
        letter = _LEGEND[mark.what]
        line[_column(mark.x, low, high, across)] = letter
        used.add(letter)
    made = [Text(" " * 10 + "+" + "-" * across)]
    if used:
        made.append(Text(" " * 11 + "".join(line).rstrip(), style="bold red"))
    what = "step" if by_steps(log) else "record"
    left, right = f"{what} {low:g}", f"{high:g}"
    made.append(Text(" " * 11 + left + right.rjust(max(1, across - len(left))), style="dim"))
    legend = ", ".join(f"{letter} {_WORDS[letter]}" for letter in _WORDS if letter in used)
    if legend:
        made.append(Text(f"{'':11}{legend}; x: not finite", style="dim"))
    return made
