"""`stayfinite logs FILE...`: what happened in a training, when, with a plot."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stayfinite.cli._output import Output, output_options


@click.command("logs")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@output_options
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png|.html",
    help="Draw the curves: log axes, non-finite values as marks, events marked.",
)  # fmt: skip
@click.option("--chart/--no-chart", default=None, help="A chart in the terminal. [default: when it is one]")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Also keep and show this series.")
@click.option(
    "--config", metavar="FILE", help="A configuration whose learning rate is compared with the logged one."
)
@click.option("--compare", "comparing", is_flag=True, help="Two logs: where the runs part.")
@click.option(
    "--follow",
    "following",
    is_flag=True,
    help="Watch a log that is being written; exit with 1 when it goes bad.",
)
@click.option("--keep-going", is_flag=True, help="With --follow: go on after an alarm.")
@click.option(
    "--idle",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="With --follow: end when nothing came for so long.",
)
@click.option("--all", "everything", is_flag=True, help="Show every finding, however many there are.")
def command(
    paths: tuple[str, ...],
    output: Output,
    plot: Path | None,
    chart: bool | None,
    metrics: tuple[str, ...],
    config: str | None,
    comparing: bool,
    following: bool,
    keep_going: bool,
    idle: float | None,
    everything: bool,
) -> None:
    """Read training logs and say what happened: files, or folders that hold logs.

    Reads JSON lines, run.jsonl, trainer_state.json, TensorBoard events, CSV, Lightning's metrics.csv, W&B's local
    history, and plain text or tqdm output; gigabytes in one pass, also gzip. Finds the first value that is not finite,
    the window of failure, what came before it, and failures that a log hides.

    \b
    stayfinite logs runs/a/run.jsonl
    stayfinite logs train.log --plot train.html
    stayfinite logs --follow train.log || notify-send "the run went bad"
    stayfinite logs --compare before.jsonl after.jsonl
    """
    from stayfinite.cli import _logs
    from stayfinite.readers.log import UnreadableLog

    request = _logs.Request(
        paths=list(paths),
        output=output,
        config=config,
        metrics=metrics,
        plot=plot,
        chart=chart,
        everything=everything,
    )
    if comparing and len(paths) != 2:
        raise click.UsageError("--compare takes two logs")
    if following and len(paths) != 1:
        raise click.UsageError("--follow takes one log")
    if (keep_going or idle is not None) and not following:
        raise click.UsageError("--keep-going and --idle belong to --follow")
    try:
        if comparing:
            code = _logs.run_compare(request)
        elif following:
            code = _logs.run_follow(request, idle, keep_going)
        else:
            code = _logs.run_logs(request)
    except UnreadableLog as trouble:
        click.echo(f"Error: {trouble}", err=True)
        code = 2
    sys.exit(code)
