"""The fire drill as a table: a line for every fault, and below it what was seen."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from stayfinite.findings.drill import DrilledFault, DrillReport

_SHOWN = {"yes": "yes", "no": "NO", "unknown": "unknown", "not applicable": "-"}


def drill_lines(report: DrillReport) -> list[RenderableType]:
    """What each fault was, who caught it, and what was left."""
    rows = [_row(fault) for fault in report.faults]
    heading = ("fault", "caught", "undone", "survived")
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(4)]
    made: list[RenderableType] = [
        Text(f"stayfinite: fire drill of {report.target} after {report.step} updates", style="bold"),
        Text(f"  {report.script}", style="dim"),
        Text("  " + _columns(heading, widths), style="dim"),
    ]
    for fault, row in zip(report.faults, rows, strict=True):
        made.append(Text("  " + _columns(row, widths), style="" if fault.passed else "bold red"))
        made += [Text(f"      {line}", style="dim") for line in _seen(fault)]
    failed = [fault.fault for fault in report.faults if not fault.passed]
    made.append(
        Text(f"not survived, or not known: {', '.join(failed)}" if failed else "every fault was survived")
    )
    return made


def _row(fault: DrilledFault) -> tuple[str, str, str, str]:
    caught = _SHOWN[fault.caught] + (f", by {fault.caught_by}" if fault.caught_by else "")
    return fault.fault, caught, _SHOWN[fault.undone], _SHOWN[fault.survived]


def _columns(row: tuple[str, ...], widths: list[int]) -> str:
    return "   ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _seen(fault: DrilledFault) -> list[str]:
    same = [kind for kind, unchanged in fault.compared.items() if unchanged]
    shown = [fault.injected, *fault.details]
    if same and fault.undone == "yes":
        shown.append(f"the same bits as before: {', '.join(same)}")
    return shown
