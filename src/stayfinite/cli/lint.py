"""`stayfinite lint PATH...`: look into configurations and Python source before the run; nothing is executed."""

from __future__ import annotations

import sys

import click

from stayfinite.cli._output import Output, output_options


@click.command("lint")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@output_options
@click.option("--all", "everything", is_flag=True, help="Show every finding, however many there are.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out files or folders; may be repeated."
)
@click.option(
    "--source",
    metavar="DIR",
    help="Sources that read the configuration: keys that none of them reads are reported.",
)
@click.option("--fix", is_flag=True, help="Show exact stable forms as a diff, then ask before writing them.")
@click.option("--write", is_flag=True, help="With --fix: write without asking.")
@click.option(
    "--preset",
    type=click.Choice(["conservative", "ultra"]),
    help="Print a patch that moves each configuration towards settings that rarely fail.",
)
def command(
    paths: tuple[str, ...],
    output: Output,
    everything: bool,
    exclude: tuple[str, ...],
    source: str | None,
    fix: bool,
    write: bool,
    preset: str | None,
) -> None:
    """Lint configurations and Python source before the run.

    Reads YAML, JSON, TOML, Hugging Face, DeepSpeed, Accelerate and Hydra-style configurations, Python configuration
    modules and training code. Follows values through functions, so that a guarded operation is silent. Nothing is
    imported or executed.

    \b
    stayfinite lint .                      everything in this folder
    stayfinite lint config.yaml --source . keys that no source reads
    stayfinite lint train.py --fix         exact stable forms, shown as a diff first
    stayfinite lint config.yaml --preset conservative | patch -p1

    A line with `# stayfinite: ignore[SRC001]` is left alone; `[tool.stayfinite]` of pyproject.toml has select, ignore,
    exclude and thresholds. Exit codes: 0 nothing at error level, 1 errors found, 2 nothing could be read.
    """
    from stayfinite.cli import _lint

    if write and not fix:
        raise click.UsageError("--write needs --fix")
    request = _lint.Request(
        paths=list(paths),
        output=output,
        everything=everything,
        exclude=exclude,
        source=source,
        fix=fix,
        write=write,
        preset=preset,
    )
    sys.exit(_lint.run(request))
