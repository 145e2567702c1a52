"""What `stayfinite probe` does: load the factory, examine, deliver. Prints; the work is elsewhere."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

import click
from rich.console import RenderableType

from stayfinite.cli._output import Output, exit_code
from stayfinite.cli._report_file import check_output
from stayfinite.findings import Json, jsonable
from stayfinite.findings.subjects.probed_model import SearchResult, Trial
from stayfinite.probe.examine import ProbeVerdict, examine_model
from stayfinite.probe.factory import WrongFactory, load
from stayfinite.probe.target import Probe
from stayfinite.report.probe_text import PartLines, probe_lines
from stayfinite.report.status_line import PartProgress


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    factory: str
    output: Output
    only: tuple[str, ...]
    budget: float
    ranges: tuple[tuple[str, float, float], ...]
    stress: bool
    everything: bool


def run(request: Request) -> int:
    """Examine the model; exit code 2 where the factory cannot be used."""
    check_output(request.output.path, [request.factory.rpartition(":")[0]])
    # What the user's code prints must not get into a report that a program reads.
    printed: AbstractContextManager[Any] = (
        nullcontext() if request.output.form == "text" else redirect_stdout(sys.stderr)
    )
    try:
        with printed, PartProgress() as progress, warnings.catch_warnings():
            probe = load(request.factory)
            _set_ranges(probe, request)
            warnings.simplefilter("ignore")  # half precision and odd batches make torch and the model warn
            verdict = examine_model(
                probe,
                name=request.factory,
                only=request.only,
                budget=request.budget,
                stress=request.stress,
                progress=progress.show,
            )
    except WrongFactory as error:
        click.echo(f"Error: {error}", err=True)
        return 2
    except KeyboardInterrupt:
        click.echo("stopped; the model and your files are as they were", err=True)
        return 130
    verdict.findings = request.output.chosen(verdict.findings)

    def text() -> Sequence[RenderableType]:
        parts = [
            PartLines(title, verdict.state(name), verdict.of(name),
                      [verdict.skipped[name]] if name in verdict.skipped else _notes(verdict, name))
            for name, title in verdict.ran
        ]  # fmt: skip
        tests = [r.test for r in verdict.subject.searches if r.counts]
        return probe_lines(request.factory, parts, tests, everything=request.everything)

    request.output.deliver(verdict.findings, text, _more(verdict))
    return exit_code(verdict.findings)


def _set_ranges(probe: Probe, request: Request) -> None:
    ranges = request.ranges
    if not ranges:
        return
    if any(not name for name, _, _ in ranges):
        if len(ranges) > 1:
            raise WrongFactory(
                f"{request.factory}: give one --range LOW:HIGH for all inputs, or one --range NAME=LOW:HIGH each"
            )
        probe.range = (ranges[0][1], ranges[0][2])
        return
    probe.range = {name: (low, high) for name, low, high in ranges}


def _notes(verdict: ProbeVerdict, name: str) -> list[str]:
    notes = list(verdict.subject.notes.get(name, ()))
    if name == "search":
        notes += [_searched(result) for result in verdict.subject.searches]
    return notes


def _searched(result: SearchResult) -> str:
    spans = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in list(result.ranges.items())[:4])
    spent = f"{result.trials} trials, {result.seconds:.1f} s"
    if not result.found:
        return f"{result.reason} ({spent}{'; ' + spans if spans else ''})"
    if not result.counts:
        where = f" (line {result.located.line})" if result.located.line else ""
        return f"fails only at {result.times:g} times the range of the batch: {result.what}{where} ({spent})"
    return f"an input that fails: {result.condition} ({spent}{'; ' + spans if spans else ''})"


def _more(verdict: ProbeVerdict) -> dict[str, Json]:
    subject = verdict.subject
    return {
        "factory": subject.name,
        "batteries": [
            {
                "name": name,
                "state": verdict.state(name),
                "notes": list(_notes(verdict, name)),
                "not_run": verdict.skipped.get(name),
                "trials": [_trial(t) for t in subject.trials if t.battery == name],
            }
            for name, _ in verdict.ran
        ],
        "search": [
            {
                "found": r.found,
                "declared": r.declared,
                "times": r.times,
                "condition": r.condition,
                "what": r.what,
                "file": r.located.file,
                "line": r.located.line,
                "op": r.located.op,
                "trials": r.trials,
                "seconds": jsonable(r.seconds),
                "reason": r.reason,
                "test": r.test,
            }
            for r in subject.searches
        ],
    }


def _trial(trial: Trial) -> Json:
    return {
        "condition": trial.condition,
        "outcome": trial.outcome,
        "what": trial.what,
        "op": trial.located.op,
        "file": trial.located.file,
        "line": trial.located.line,
    }
