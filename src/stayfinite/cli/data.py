"""`stayfinite data FILE...`: look into data files before a model does."""

from __future__ import annotations

import sys

import click

from stayfinite.cli._output import Output, import_torch, jobs_option, output_options


@click.command("data")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@output_options
@click.option("--classes", type=click.IntRange(1), metavar="N", help="Labels must be 0 to N-1.")
@click.option(
    "--ignore-index", type=int, default=-100, show_default=True, help="The label that does not count."
)
@click.option(
    "--labels", multiple=True, metavar="NAME", help="An array or column that holds labels. [default: by name]"
)
@click.option(
    "--range", "value_range", type=float, nargs=2, metavar="LOW HIGH", help="Inputs must lie in this range."
)
@click.option(
    "--norm", type=click.FloatRange(0, min_open=True), metavar="N", help="Embeddings must have this norm."
)
@jobs_option
@click.option(
    "--all", "everything", is_flag=True, help="Show every finding and array, however many there are."
)
def command(
    paths: tuple[str, ...],
    output: Output,
    classes: int | None,
    ignore_index: int,
    labels: tuple[str, ...],
    value_range: tuple[float, float] | None,
    norm: float | None,
    jobs: int,
    everything: bool,
) -> None:
    """Look into data files and folders: pt, npy, npz, safetensors, csv, tsv, parquet, images.

    Finds NaN and Inf, values out of range, constant samples and columns, zero vectors, repeated rows, labels that are
    all ignored or outside the classes, boxes without area, CTC samples that cannot be aligned, raw bytes as inputs, and
    damaged files; names the samples; says of an embedding cache whether it has to be computed again. Reads at the speed
    of the disk, executes no pickle.

    \b
    stayfinite data cache/embeddings.pt --norm 1
    stayfinite data train.csv --labels target --classes 10
    stayfinite data images/ --jobs 8
    """
    torch = import_torch("data", "read tensors")
    from stayfinite.cli import _data

    torch.set_num_threads(1)  # the threads of --jobs do the work; nested ones would fight for the processors
    if value_range is not None and value_range[0] > value_range[1]:
        raise click.UsageError(
            f"--range {value_range[0]:g} {value_range[1]:g}: the first number must be the lower one"
        )
    request = _data.Request(
        paths=list(paths),
        output=output,
        expected=_data.expectation(classes, ignore_index, value_range, norm),
        labels=labels,
        jobs=jobs,
        everything=everything,
    )
    sys.exit(_data.run(request))
