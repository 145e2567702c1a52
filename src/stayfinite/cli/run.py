"""`stayfinite run script.py`: watch an unchanged script and explain what fails in it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from stayfinite.cli._drill import CommandWithDrill, drill_and_leave
from stayfinite.cli._report_file import check_output
from stayfinite.findings import Incident

_OTHER_LAUNCHERS = {
    "accelerate": "accelerate launch ... -m",
    "accelerate-launch": "accelerate launch ... -m",
    "accelerate.commands.launch": "accelerate launch ... -m",
    "accelerate.commands.accelerate_cli": "accelerate launch ... -m",
    "deepspeed": "deepspeed ... --module",
    "deepspeed.launcher.runner": "deepspeed ... --module",
}
"""What starts scripts, as a command or a module, and how it starts a module instead."""


@click.command(
    "run",
    cls=CommandWithDrill,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.option(
    "--nproc-per-node",
    "ranks",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Start N ranks of the script on this host, as torchrun does: one folder, one report.",
)
@click.option(
    "--locate",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="auto: find the line where a failure began, by running the script once more in a sandbox that can change "
    "nothing. off: only say that it failed.",
)
@click.option(
    "--locate-limit",
    type=click.FloatRange(min=1.0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long that second run may take.",
)
@click.option(
    "--prove/--no-prove",
    default=True,
    show_default=True,
    help="Try remedies on a failure that was located, in a sandbox, and show the one that works.",
)
@click.option(
    "--prove-limit",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long trying may take.",
)
@click.option(
    "--allow-rerun",
    is_flag=True,
    help="Run the script once more also where there is no sandbox: what it writes and sends, it writes and sends "
    "again.",
)
@click.option(
    "--policy",
    type=click.Choice(["skip", "recover", "stop", "watch"]),
    default=None,
    help="What to do with a bad step. skip: refuse it, and stop the run at 10 in a row.  [default]  recover: if they "
    "go on, lower the learning rate, roll back, and stop at 10. stop: at the first. watch: let it happen. Loss spikes "
    "are refused only if a policy is named.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0.0, 1.0),
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Exit with 1 if less than this share of the updates was applied.",
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
    help="Keep run.jsonl, incidents and checkpoints here.  [default: stayfinite-runs/TIME, kept if a step was refused]",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write incidents here, as JSON.",
)
@click.option("--max-incidents", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--drill",
    type=click.IntRange(min=1),
    default=None,
    metavar="[STEP]",
    help="Fire drill: in a sandbox, put a NaN batch, an Inf gradient and a bad update into the script after STEP "
    "updates (3), and kill it while it saves; show whether each was caught, undone bit for bit and survived. "
    "Nothing of yours is touched. Exit code 0 if all were survived, else 1.",
)
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    module: bool,
    ranks: int | None,
    locate: str,
    locate_limit: float,
    prove: bool,
    prove_limit: float,
    allow_rerun: bool,
    policy: str | None,
    fail_under: float,
    clip: float | None,
    run_dir: Path | None,
    form: str,
    output: Path | None,
    max_incidents: int,
    drill: int | None,
    target: str,
    arguments: tuple[str, ...],
) -> None:
    """Run TARGET with its ARGUMENTS under guard, and explain what fails in it.

    The script is not changed. Its output, exit code and signals stay its own; the report goes to stderr. A step
    whose loss, gradients or update are not finite is not applied; the exit code is 1 if the policy stopped the run,
    or most updates were refused.

    \b
    stayfinite run train.py --epochs 3
    stayfinite run --policy stop --run-dir runs/a -m package.train
    stayfinite run --drill train.py --epochs 1
    stayfinite run --nproc-per-node 4 train.py
    torchrun --nnodes 2 --nproc-per-node 8 ... -m stayfinite run train.py
    """
    if form == "json" and output is None and drill is None:
        raise click.UsageError("--format json needs --output FILE, because stdout belongs to the script.")
    if policy == "watch" and clip is not None:
        raise click.UsageError("--policy watch changes nothing in the run, so it cannot --clip.")
    launcher = _OTHER_LAUNCHERS.get(target if module else Path(target).stem)
    if launcher is not None and (module or not target.endswith(".py")):
        raise click.UsageError(
            f"{target} starts the script in processes of its own, which would not be guarded. Turn it round: "
            f"`{launcher} stayfinite run train.py`."
        )
    if not module and target != "torchrun" and not Path(target).is_file():
        raise click.UsageError(f"can't open file {target!r}: there is no such script.")
    check_output(output, [] if module else [target])
    if drill is not None and policy == "watch":
        raise click.UsageError("--policy watch lets bad steps happen: there is nothing to drill.")
    if drill is not None and ranks is not None:
        raise click.UsageError("--drill tries one process; it cannot be combined with --nproc-per-node.")
    collects = gc.isenabled()
    try:
        gc.disable()  # going through torch's million objects again and again takes longer than loading
        from stayfinite import launch
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise click.ClickException(
            "`stayfinite run` needs PyTorch: pip install 'stayfinite[torch]'"
        ) from missing
    finally:
        if collects:
            gc.enable()
    options = launch.Options(
        target=target,
        arguments=arguments,
        module=module,
        locate=locate,
        locate_limit=locate_limit,
        allow_rerun=allow_rerun,
        prove=prove and locate != "off" and os.environ.get("STAYFINITE_PROVE") != "off",
        prove_limit=prove_limit,
        output=output.absolute() if output is not None else None,
        form=form,
        run_dir=run_dir.absolute() if run_dir is not None else None,
        max_incidents=max_incidents,
        policy=policy,
        fail_under=fail_under,
        clip=clip,
    )
    if drill is not None:
        drill_and_leave(options, drill)
    from stayfinite.report.incident import print_report

    def report(incidents: list[Incident], remarks: list[str], files: list[Path]) -> None:
        print_report(incidents, remarks, files=files)

    if launch.is_torchrun(options):
        if ranks is not None:
            raise click.UsageError("torchrun starts the ranks itself; give --nproc-per-node to it alone.")
        try:
            sys.exit(launch.run_under_torchrun(options, _say, report))
        except ValueError as error:
            raise click.UsageError(f"{error}.") from error
    if ranks is not None and ranks > 1:
        sys.exit(launch.run_on_ranks(options, ranks, _say, report))
    sys.exit(launch.run(options, report))


def _say(text: str) -> None:
    click.echo(f"stayfinite: {text}", err=True)
