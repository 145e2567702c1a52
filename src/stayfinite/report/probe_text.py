"""A probed model as text: each battery with pass or fail, its findings, the evidence, and a failing batch as a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from stayfinite.findings import Finding
from stayfinite.report.text import lines, tally

_STYLE = {"pass": "green", "fail": "bold red", "not run": "yellow"}


@dataclass(frozen=True, slots=True)
class PartLines:
    """One battery, the search or the stress run."""

    title: str
    state: str
    findings: list[Finding]
    notes: list[str]


def probe_lines(
    name: str, parts: Sequence[PartLines], tests: Sequence[str], *, everything: bool = False
) -> list[RenderableType]:
    made: list[RenderableType] = [Text(name, style="bold")]
    for part in parts:
        line = Text(f"{part.state:<8}", style=_STYLE[part.state])
        line.append(part.title, style="not bold default")
        made.append(line)
        made += lines(part.findings, everything=everything)
        made += [Text(f"          {note}", style="dim") for note in part.notes]
    for test in tests:
        made.append(Text("a batch that fails, as a test:", style="bold"))
        made += [Text(f"    {line}") for line in test.splitlines()]
    findings = [finding for part in parts for finding in part.findings]
    made.append(Text(tally(findings), style="bold"))
    return made
