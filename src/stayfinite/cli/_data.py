"""What `stayfinite data` does: find the files, examine each, deliver. Prints; the work is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import RenderableType

from stayfinite.cli._output import Output, exit_code
from stayfinite.data.examine import DataVerdict, examine_data
from stayfinite.findings import Json, jsonable, worst_first
from stayfinite.findings.subjects.data_set import Expectation
from stayfinite.readers.checkpoint import files
from stayfinite.readers.data import find_data
from stayfinite.report.bytes_progress import BytesProgress
from stayfinite.report.data_text import data_lines


@dataclass(slots=True)
class Request:
    """What the user asked for."""

    paths: list[str]
    output: Output = field(default_factory=Output)
    expected: Expectation = field(default_factory=Expectation)
    labels: tuple[str, ...] = ()
    jobs: int = 1
    everything: bool = False


def expectation(
    classes: int | None, ignore_index: int, value_range: tuple[float, float] | None, norm: float | None
) -> Expectation:
    low, high = value_range if value_range is not None else (None, None)
    return Expectation(low, high, norm, classes, ignore_index)


def run(request: Request) -> int:
    """Examine everything; exit code 2 where nothing could be read."""
    found: list[tuple[str, list[str] | None]] = []
    for path in request.paths:
        if not Path(path).is_file() and not Path(path).is_dir():
            click.echo(f"Error: {path}: {files.why_not_there(path)}", err=True)
            continue
        here = list(find_data(path))
        if not here:
            click.echo(f"Error: {path}: no data file in this folder (looked for pt npy npz safetensors csv tsv parquet "
                       "and images)", err=True)  # fmt: skip
        found += here
    verdicts: list[DataVerdict] = []
    total = sum(Path(name).stat().st_size for path, images in found for name in (images or [path]))
    with BytesProgress(total, what="reading") as progress:
        for path, images in found:
            verdict = examine_data(
                path,
                images_in=images,
                expected=request.expected,
                labels=request.labels,
                jobs=request.jobs,
                advance=progress.advance,
            )
            verdict.findings = request.output.chosen(verdict.findings)
            verdicts.append(verdict)
    findings = worst_first([finding for verdict in verdicts for finding in verdict.findings])
    for verdict in verdicts:
        if verdict.unreadable is not None:
            click.echo(f"Error: {verdict.unreadable}", err=True)

    def text() -> Sequence[RenderableType]:
        return data_lines([(v.data, v.findings) for v in verdicts], everything=request.everything)

    if verdicts:
        more: dict[str, Json] = {"files": [summary(verdict) for verdict in verdicts]}
        request.output.deliver(findings, text, more)
    return exit_code(findings, unreadable=all(verdict.unreadable is not None for verdict in verdicts))


def summary(verdict: DataVerdict) -> dict[str, Json]:
    """One file in JSON."""
    data = verdict.data
    return {
        "path": data.path,
        "format": data.format,
        "bytes": data.nbytes,
        "healthy": verdict.healthy,
        "recompute": data.recompute(),
        "arrays": [
            {
                "name": array.name,
                "use": array.use.value,
                "dtype": array.dtype,
                "shape": list(array.shape),
                "min": jsonable(array.minimum),
                "max": jsonable(array.maximum),
                "mean": jsonable(array.mean),
                "std": jsonable(array.deviation),
                "not_finite_samples": array.bad.count,
                "zero_samples": array.zero.count,
                "constant_samples": array.constant.count,
                "repeated_samples": array.duplicates.count,
            }
            for array in data.arrays
        ],
    }
