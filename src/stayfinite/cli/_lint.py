"""What `stayfinite lint` does: lint, then print, mend or propose. The work is in stayfinite.lint."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from stayfinite.cli._output import Output, exit_code
from stayfinite.findings import Finding, all_rules
from stayfinite.lint import fix as fixes
from stayfinite.lint.examine import Report, lint
from stayfinite.lint.presets import PRESETS, moves, patched
from stayfinite.lint.settings import Settings, WrongSettings, find_settings
from stayfinite.report.status_line import FileProgress
from stayfinite.report.text import lines, tally

_DEEPEST_CALLS = 5000


@dataclass(slots=True)
class Request:
    """What the user asked for."""

    paths: list[str]
    output: Output = field(default_factory=Output)
    everything: bool = False
    exclude: tuple[str, ...] = ()
    source: str | None = None
    fix: bool = False
    write: bool = False
    preset: str | None = None


def run(request: Request) -> int:
    """Lint and deliver; the exit code."""
    try:
        settings = find_settings(Path(request.paths[0]))
    except WrongSettings as trouble:
        click.echo(f"Error: {trouble}", err=True)
        return 2
    if request.source is not None and not Path(request.source).exists():
        click.echo(f"Error: --source {request.source}: no such file or folder", err=True)
        return 2
    output = _with_settings(request.output, settings)
    unknown = _unknown_codes((*output.select, *output.ignore))
    if unknown is not None:
        click.echo(f"Error: no rule is called {unknown!r}; `stayfinite rules` lists them", err=True)
        return 2
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST_CALLS))  # long sums nest deeply
    with FileProgress(quiet=request.preset is not None) as progress:
        report = lint(
            request.paths, settings, exclude=request.exclude, source=request.source, advance=progress.advance
        )
    report.findings = output.chosen(report.findings)
    for sentence in report.unreadable:
        click.echo(f"not linted: {sentence}", err=True)
    if not (report.files or report.unreadable or request.exclude or settings.exclude):
        named = ", ".join(request.paths)
        click.echo(f"Error: {named}: no Python source and no configuration to lint", err=True)
        return 2
    if request.preset is not None:
        return _propose(report, request.preset, output)
    made = fixes.changes(report.findings)
    report.findings = _with_patches(report.findings)
    output.deliver(
        report.findings,
        lambda: _text(report, request.everything, len(made) if not request.fix else 0),
        {"files": report.files, "lines": report.lines, "unreadable": list(report.unreadable)},
    )
    if request.fix:
        _mend(made, request)
    return exit_code(report.findings, bool(report.unreadable) and report.files == 0)


def _with_settings(output: Output, settings: Settings) -> Output:
    """The project's select and ignore, where the command line says nothing else."""
    select = output.select or settings.select
    return replace(output, select=select, ignore=(*output.ignore, *settings.ignore))


def _unknown_codes(wanted: Sequence[str]) -> str | None:
    rules = all_rules()
    for item in wanted:
        if not any(rule.code.startswith(item.upper()) or rule.name == item.lower() for rule in rules):
            return item
    return None


def _text(report: Report, everything: bool, fixable: int) -> list[RenderableType]:
    made: list[RenderableType] = [*lines(report.findings, everything=everything)]
    configs = len(report.configs)
    counted = ", ".join(
        f"{number} {name}{'' if number == 1 else 's'}"
        for number, name in ((report.sources, "source"), (configs, "configuration"), (report.lines, "line"))
    )
    made.append(Text(f"{tally(report.findings)} in {counted}", style="bold"))
    if fixable:
        made.append(Text("some have an exact stable form: --fix shows it", style="dim"))
    return made


def _with_patches(findings: Sequence[Finding]) -> list[Finding]:
    """Each finding with the diff of its own replacement."""
    made: list[Finding] = []
    for finding in findings:
        change = fixes.changes([finding]) if "edit" in finding.evidence else []
        made.append(replace(finding, patch=change[0].diff()) if change else finding)
    return made


def _mend(made: Sequence[fixes.Change], request: Request) -> None:
    if not made:
        click.echo("nothing here has an exact stable form", err=True)
        return
    for change in made:
        click.echo(change.diff(), nl=False, err=request.output.form != "text")
    count = sum(change.count for change in made)
    if not request.write:
        if not sys.stdin.isatty():
            click.echo(f"{count} fixes shown, none written; add --write to write them", err=True)
            return
        if not click.confirm(f"Write {count} fixes to {len(made)} files?", err=True):
            return
    for change in made:
        trouble = fixes.write(change)
        click.echo(trouble or f"{change.path}: {change.count} fixed ({', '.join(change.codes)})", err=True)


def _propose(report: Report, name: str, output: Output) -> int:
    """The patch on stdout, so that it can be piped; what it changes on stderr."""
    preset = PRESETS[name]
    diffs: list[str] = []
    for config in report.configs:
        change = patched(config, preset)
        if change is None:
            click.echo(f"{config.path}: nothing to change for {name}", err=True)
            continue
        for move in moves(config, preset):
            click.echo(
                f"{config.path}:{move.entry.line}: {move.entry.name} {move.entry.text} -> {move.new} ({move.why})",
                err=True,
            )
        diffs.append(change.diff())
    if not report.configs:
        click.echo("Error: no configuration among the paths", err=True)
        return 2
    text = "".join(diffs)
    if output.path is not None:
        output.path.write_text(text, encoding="utf-8")
    else:
        click.echo(text, nl=False)
    return 0
