"""`stayfinite scan PATH...`: look into checkpoints without executing them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stayfinite.cli._output import Output, import_torch, jobs_option, output_options
from stayfinite.cli._report_file import check_output


@click.command("scan")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@output_options
@click.option("--all", "everything", is_flag=True, help="Show every finding, however many there are.")
@jobs_option
@click.option(
    "--config",
    "config",
    metavar="FILE",
    help="A configuration whose learning rate is compared with the stored one.",
)
@click.option(
    "--last-good", is_flag=True, help="Order by step: the newest healthy one, and where the trouble started."
)
@click.option("--against", metavar="OTHER", help="Compare tensor by tensor with another checkpoint.")
@click.option(
    "--quarantine", metavar="DIR", type=click.Path(path_type=Path), help="Move bad checkpoints into DIR."
)
@click.option("--yes", is_flag=True, help="Do not ask before moving.")
@click.option(
    "--repair",
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="Write a repaired copy of the checkpoint.",
)
@click.option(
    "--from", "good", metavar="GOOD", help="The healthy checkpoint that --repair takes tensors from."
)
@click.option(
    "--max-share", type=click.FloatRange(0, 1), default=0.5, show_default=True,
    help="--repair refuses to replace more than this share of all values.",
)  # fmt: skip
def command(
    paths: tuple[str, ...],
    output: Output,
    everything: bool,
    jobs: int,
    config: str | None,
    last_good: bool,
    against: str | None,
    quarantine: Path | None,
    yes: bool,
    repair: Path | None,
    good: str | None,
    max_share: float,
) -> None:
    """Look into checkpoints: files, folders, patterns, or URLs that fsspec can open.

    Reads torch files (zip and legacy), Lightning, safetensors, sharded and distributed checkpoints, Hugging Face
    folders, DeepSpeed and FSDP shards, npz/npy and pickles, at the speed of the disk. No pickle is executed.
    Under torchrun the ranks share the work: `torchrun --nproc-per-node 8 -m stayfinite scan DIR`.
    """
    torch = import_torch("scan", "read tensors")
    inputs = [*paths, *(given for given in (config, against, good) if given is not None)]
    check_output(output.path, inputs)
    from stayfinite.cli import _scan
    from stayfinite.readers.checkpoint import Unreadable

    torch.set_num_threads(1)  # the threads of --jobs do the work; nested ones would fight for the processors
    request = _scan.Request(paths=list(paths), output=output, everything=everything, jobs=jobs, config=config)
    if repair is not None and good is None:
        raise click.UsageError("--repair needs --from GOOD, a healthy checkpoint of the same model")
    try:
        if repair is not None and good is not None:
            code = _scan.run_repair(request, repair, good, max_share)
        elif against is not None:
            code = _scan.run_against(request, against)
        else:
            code = _scan.run_scan(request, last_good=last_good, quarantine_to=quarantine, yes=yes)
    except Unreadable as trouble:
        click.echo(f"Error: {trouble}", err=True)
        code = 2
    sys.exit(code)
