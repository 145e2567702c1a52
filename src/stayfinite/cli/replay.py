"""`stayfinite replay INCIDENT`: a failure once more, offline; its patch applied, its test written."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("replay")
@click.argument("incident", type=click.Path(path_type=Path))
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Run this script instead of the one in the capsule.",
)
@click.option(
    "--step",
    "factory",
    metavar="MODULE:FUNCTION",
    help="For a capsule of guard.step: a function that gives (model, loss function) to put the capsule's state into.",
)
@click.option("--float32", is_flag=True, help="With --step: everything in float32.")
@click.option(
    "--sample", type=click.IntRange(min=0), default=None, help="With --step: this sample of the batch alone."
)
@click.option("--trace", is_flag=True, help="Show every op from the birth to the loss.")
@click.option(
    "--apply",
    "apply_patch",
    is_flag=True,
    help="Write the proved patch into the source (a backup stays as FILE.orig) and prove it again.",
)
@click.option(
    "--test",
    "test",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write a test that fails without the patch and passes with it.",
)
@click.option(
    "--limit",
    type=click.FloatRange(min=1.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a run may take.",
)
def command(
    incident: Path,
    script: Path | None,
    factory: str | None,
    float32: bool,
    sample: int | None,
    trace: bool,
    apply_patch: bool,
    test: Path | None,
    limit: float,
) -> None:
    """Run the failure of INCIDENT again: a folder runs/NAME/incidents/NNNN, or the incident.json in it.

    A capsule holds plain data only; one that holds anything else is refused. The exit code is 0 if the failure was
    reproduced (with --apply: if it is cured), 1 if not, 2 for an incident that cannot be read.

    \b
    stayfinite replay stayfinite-runs/NAME/incidents/0001
    stayfinite replay runs/a/incidents/0001 --apply --test tests/test_loss.py
    stayfinite replay runs/a/incidents/0002 --step train:make --sample 17
    """
    from stayfinite.cli import _replay

    request = _replay.Request(incident, script, factory, float32, sample, trace, apply_patch, test, limit)
    raise SystemExit(_replay.replay(request))
