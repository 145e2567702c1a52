"""Text for a person at a terminal; plain and wide where the output is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL = 110


def console(*, stderr: bool = False) -> Console:
    """A console on stdout (or stderr) that neither wraps oddly nor colours when piped."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, highlight=False, emoji=False)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    """A light table."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def markdown(text: str) -> RenderableType:
    """A rule's page: rendered on a terminal, as written elsewhere."""
    if not sys.stdout.isatty():
        return Text(text)
    from rich.markdown import Markdown  # here: a tenth of a second that only a page of a rule is worth

    return Markdown(text)
