"""Findings as text for a person: worst first, grouped by rule, at most a screen unless everything is asked for."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from stayfinite.findings import Finding, Severity, worst_first

_STYLE = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_FEWEST_LINES = 24


def screen() -> int:
    """How many lines a screen has; a generous page where the output is not a terminal."""
    return shutil.get_terminal_size((110, 50)).lines if sys.stdout.isatty() else 50


def as_typed(file: str) -> str:
    """A path below the working directory as one would type it; any other as it is."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def lines(findings: Sequence[Finding], *, everything: bool = False, room: int | None = None) -> list[Text]:
    """The findings as lines. `room` is the number of lines to keep to."""
    ordered = worst_first(list(findings))
    groups: dict[tuple[str, Severity], list[Finding]] = {}
    for finding in ordered:
        groups.setdefault((finding.code, finding.severity), []).append(finding)
    budget = max(_FEWEST_LINES, screen() - 12) if room is None else max(room, 2)
    each = len(ordered) if everything else max(1, (budget - 2 * len(groups)) // max(len(groups), 1))
    made: list[Text] = []
    hidden = 0
    for members in groups.values():
        shown = members[:each]
        if not everything and made and len(made) + len(shown) + 1 > budget:
            hidden += len(members)
            continue
        made += _group(shown, len(members) - len(shown))
    if hidden:
        made.append(Text(f"  and {hidden} more findings; --all shows everything", style="dim"))
    return made


def _group(shown: Sequence[Finding], left: int) -> list[Text]:
    made: list[Text] = []
    for finding in shown:
        column = f":{finding.column}" if finding.column else ""
        place = f"{as_typed(finding.file)}:{finding.line}{column}: " if finding.file and finding.line else ""
        line = Text("  ")
        line.append(f"{finding.severity.value:<8}", style=_STYLE[finding.severity])
        line.append(f"{finding.code} ", style="bold")
        line.append(f"{place}{finding.message}")
        made.append(line)
    if left:
        made.append(
            Text(f"          and {left} more of {shown[0].code} {shown[0].name} (--all)", style="dim")
        )
    made.append(Text(f"          what to do: {shown[-1].fix}", style="green"))
    return made


def tally(findings: Sequence[Finding]) -> str:
    """ "3 errors, 1 warning"."""
    counts = [(level, sum(f.severity is level for f in findings)) for level in Severity]
    named = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    parts = [f"{count} {named[level]}{'s' if count != 1 else ''}" for level, count in counts if count]
    return ", ".join(parts) or "nothing found"
