"""`stayfinite run script.py`: watch an unchanged script and explain what fails in it."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.option(
    "--trace",
    type=click.Choice(["failure", "always", "never"]),
    default="failure",
    show_default=True,
    help="failure: watch, and locate a failure by a second run. always: trace from the first op.",
)
@click.option(
    "--policy",
    type=click.Choice(["default", "skip", "stop", "watch"]),
    default=None,
    help="What to do with a bad step. default: refuse it; if they go on, lower the rate, roll back, and stop at 10 "
    "in a row. skip: refuse, then stop. stop: at the first. watch: let it happen. Loss spikes are refused only if "
    "a policy is named.",
)
@click.option(
    "--clip",
    type=click.FloatRange(min=0.0, min_open=True),
    default=None,
    help="Clip the gradient norm, whatever the script does.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Keep run.jsonl, incidents and checkpoints here.  [default: runs/TIME, kept if a step was refused]",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write incidents here."
)
@click.option("--max-incidents", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--replay-after",
    type=click.FloatRange(min=0.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="A failure this long after the start is located at once, by giving the loop over a DataLoader the same "
    "batch again, instead of by a second run of the script.",
)
@click.option("--trace-from-step", type=int, default=None, hidden=True)
@click.option("--scratch", type=click.Path(path_type=Path), default=None, hidden=True)
@click.option("--stop-after-step", type=int, default=None, hidden=True)
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    module: bool,
    trace: str,
    policy: str | None,
    clip: float | None,
    run_dir: Path | None,
    form: str,
    output: Path | None,
    max_incidents: int,
    replay_after: float,
    trace_from_step: int | None,
    scratch: Path | None,
    stop_after_step: int | None,
    target: str,
    arguments: tuple[str, ...],
) -> None:
    """Run TARGET with its ARGUMENTS under guard, and explain what fails in it.

    The script is not changed. Its output, exit code and signals stay its own; the report goes to stderr. A step
    whose loss, gradients or update are not finite is not applied; the exit code is 1 if the policy stopped the run.

    \b
    stayfinite run train.py --epochs 3
    stayfinite run --policy stop --run-dir runs/a -m package.train
    """
    if form == "json" and output is None:
        raise click.UsageError("--format json needs --output FILE, because stdout belongs to the script.")
    if trace == "always" and (policy not in (None, "watch") or clip is not None):
        raise click.UsageError(
            "--trace always only watches: leave it out to have bad steps refused by --policy or clipped by --clip."
        )
    if policy == "watch" and clip is not None:
        raise click.UsageError("--policy watch changes nothing in the run, so it cannot --clip.")
    if not module and not Path(target).is_file():
        raise click.UsageError(f"can't open file {target!r}: there is no such script.")
    try:
        from stayfinite import launch
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise click.ClickException(
            "`stayfinite run` needs PyTorch: pip install 'stayfinite[torch]'"
        ) from missing
    options = launch.Options(
        target=target,
        arguments=arguments,
        module=module,
        trace=trace,
        output=output,
        form=form,
        run_dir=run_dir,
        max_incidents=max_incidents,
        policy=policy,
        clip=clip,
        replay_after=replay_after,
        trace_from_step=trace_from_step,
        scratch=scratch,
        stop_after_step=stop_after_step,
    )
    from stayfinite.report.incident import print_report

    sys.exit(
        launch.run(options, lambda incidents, remarks, files: print_report(incidents, remarks, files=files))
    )
