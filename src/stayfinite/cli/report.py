"""`stayfinite report RUN`: what a run left behind as one page to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stayfinite.report.record.folder import RunContents


@click.command("report")
@click.argument("run", required=False, type=click.Path(path_type=Path), metavar="[RUN]")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page. [default: report.html in RUN]",
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="RUN_A RUN_B",
    help="Two runs in one page, their plots one above the other (with RUN: three).",
)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
def command(run: Path | None, output: Path | None, compare: tuple[Path, Path] | None, show: bool) -> None:
    """Write the page of RUN, the folder of a run or of one incident.

    The page is one HTML file that needs no network: the failing line, why, what to do, the values that went in, the
    path to the loss, plots of the whole run, the timeline.

    \b
    stayfinite report stayfinite-runs/20261117-090831
    stayfinite report runs/a/incidents/0001 --output failure.html
    stayfinite report --compare runs/before runs/after --output compare.html
    """
    from stayfinite.report.html.incident_page import PAGE, write_whole
    from stayfinite.report.html.page import render_comparison, render_run
    from stayfinite.report.record.folder import NothingToShow

    folders = [folder for folder in (run, *(compare or ())) if folder is not None]
    if not folders:
        raise click.UsageError(
            "name the folder of a run, for example: stayfinite report stayfinite-runs/NAME"
        )
    try:
        opened = [_opened(folder) for folder in folders]
    except NothingToShow as nothing:
        click.echo(f"Error: {nothing}", err=True)
        sys.exit(2)
    page = render_run(opened[0]) if len(opened) == 1 else render_comparison(opened)
    target = output or (opened[0].path / PAGE if len(opened) == 1 else Path("compare.html"))
    try:
        write_whole(target, page)
    except OSError as error:
        click.echo(
            f"Error: cannot write {target}: {error.strerror or error}; choose another --output", err=True
        )
        sys.exit(2)
    click.echo(f"wrote {target} ({len(page.encode(errors='replace')) / 1e6:.1f} MB)")
    if show:
        click.launch(str(target))


def _opened(folder: Path) -> RunContents:
    from stayfinite.report.bytes_progress import BytesProgress
    from stayfinite.report.record.folder import open_folder
    from stayfinite.report.record.lines import record_files

    try:
        total = sum(path.stat().st_size for path in record_files(folder))
    except OSError:  # open_folder says what is wrong
        total = 0
    with BytesProgress(total, what="reading") as progress:
        return open_folder(folder, progress.advance)
