"""The options that every command with findings has, and the one way to deliver them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from rich.console import Console, RenderableType

from stayfinite.cli._report_file import write_report
from stayfinite.findings import Finding, Severity
from stayfinite.report import FORMATS, render
from stayfinite.report.selection import codes, selected
from stayfinite.report.terminal import console


@dataclass(frozen=True, slots=True)
class Output:
    """How the user wants to see the findings."""

    form: str = "text"
    path: Path | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def chosen(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that --select and --ignore leave."""
        return selected(findings, self.select, self.ignore)

    def deliver(
        self,
        findings: Sequence[Finding],
        text: Callable[[], Sequence[RenderableType]],
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Print the findings, or write them to a file; `text` makes the lines for a person."""
        if self.form != "text":
            rendered = render(findings, self.form, more)
            if self.path is None:
                click.echo(rendered)
            else:
                write_report(self.path, rendered + "\n")
            return
        if self.path is None:
            _print(console(), text())
        else:
            written = StringIO()
            _print(Console(file=written, width=110, highlight=False, emoji=False), text())
            write_report(self.path, written.getvalue())


def _print(target: Console, lines: Sequence[RenderableType]) -> None:
    for line in lines:
        target.print(line, soft_wrap=True)


def exit_code(findings: Sequence[Finding], unreadable: bool = False) -> int:
    """2 where an input could not be read, 1 for findings at error level, else 0."""
    if unreadable:
        return 2
    return 1 if any(finding.severity is Severity.ERROR for finding in findings) else 0


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """--format, --output, --select, --ignore; the command gets them as one `Output`."""

    @functools.wraps(command)
    def with_output(
        form: str, output_path: Path | None, select: str | None, ignore: str | None, **others: Any
    ) -> None:
        command(output=Output(form, output_path, codes(select), codes(ignore)), **others)

    options = (
        click.option(
            "--format",
            "form",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="Output format.",
        ),
        click.option(
            "--output",
            "output_path",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write to a file.",
        ),
        click.option(
            "--select", metavar="CODES", help="Only these rules: codes, beginnings of codes, or names."
        ),
        click.option("--ignore", metavar="CODES", help="Not these rules."),
    )
    made: Callable[..., None] = with_output
    for option in reversed(options):
        made = option(made)
    return made


jobs_option = click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    callback=lambda context, parameter, given: given or min(os.cpu_count() or 1, 8),
    help="Threads that read and check. [default: the processors, at most 8]",
)


def import_torch(command: str, why: str) -> ModuleType:
    """torch, or one sentence on how to get it."""
    try:
        import torch
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"{command} needs PyTorch to {why}; install it with: pip install 'stayfinite[torch]'"
        ) from missing
    return torch
