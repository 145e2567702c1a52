"""`stayfinite doctor DIR`: everything found in a project, what it says together, and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stayfinite.cli._output import Output, import_torch, jobs_option, output_options
from stayfinite.cli._report_file import check_output


@click.command("doctor")
@click.argument("folder", metavar="DIR", default=".")
@output_options
@click.option(
    "--before-resume",
    metavar="CKPT",
    help="Go or no-go for a resume from this checkpoint, with reasons (exit code 0 or 1).",
)
@click.option(
    "--checklist",
    is_flag=True,
    help="The prevention list before a long run, each item checked: done, missing, n/a or unknown, and where.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write the answer as one HTML page.",
)
@click.option(
    "--probe",
    "probes",
    multiple=True,
    metavar="FILE.py:FUNCTION",
    help="A factory without arguments, as for `stayfinite probe`: the model is examined before its training, in a "
    "sandbox; unasked, `factory` in the project's probe.py is (off: none). Or a function from the path of a checkpoint "
    "to a number, a tensor, or a dict of them: where one is not finite the checkpoint is dead. May be given twice.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to read; the most telling files come first. 0: no limit.",
)
@jobs_option
@click.option("--all", "everything", is_flag=True, help="Show everything, however much there is.")
def command(
    folder: str,
    output: Output,
    before_resume: str | None,
    checklist: bool,
    html: Path | None,
    probes: tuple[str, ...],
    budget: float,
    jobs: int,
    everything: bool,
) -> None:
    """Examine a project: configurations, sources, launchers, logs, checkpoints, data and run folders.

    Runs lint, logs, scan, data and the environment check on what is there, then compares: the learning rate in
    configuration, log, scheduler and optimizer state; the precision in configuration, launcher, source and log; the
    steps in log and checkpoints; the failure against the checkpoints. Ends with a plan. Nothing of the project is
    executed, but a factory for `stayfinite probe` (--probe, `probe` in [tool.stayfinite], or `factory` in probe.py),
    and that only in a sandbox.

    \b
    stayfinite doctor .                                  what is wrong, and what to do
    stayfinite doctor . --checklist                      before a long run
    stayfinite doctor . --before-resume runs/a/last.pt   go or no-go
    stayfinite doctor . --html doctor.html --budget 0

    Exit codes: 0 nothing at error level (or go, or nothing missing), 1 errors found (or no-go, or something missing),
    2 nothing could be read.
    """
    torch = import_torch("doctor", "read checkpoints")
    from stayfinite.cli import _doctor

    if before_resume is not None and checklist:
        raise click.UsageError("--before-resume and --checklist are two questions; ask one at a time")
    check_output(output.path, [before_resume] if before_resume else [])
    torch.set_num_threads(1)  # the threads of --jobs do the work; nested ones would fight for the processors
    request = _doctor.Request(
        folder=folder,
        output=output,
        before_resume=before_resume,
        checklist=checklist,
        html=html,
        probes=probes,
        budget=budget,
        jobs=jobs,
        everything=everything,
    )
    sys.exit(_doctor.run(request))
