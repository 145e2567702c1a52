"""What `stayfinite scan` does: scan, last good, compare, quarantine, repair. Prints; the work is elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from stayfinite.checkpoint.compare import compare
from stayfinite.checkpoint.history import History, history
from stayfinite.checkpoint.quarantine import paths_of, quarantine, refusal, to_move
from stayfinite.checkpoint.repair import RepairRefused, repair
from stayfinite.checkpoint.team import RankTeam, launched_by_torchrun
from stayfinite.checkpoint.verify import CheckpointVerdict, judge
from stayfinite.cli._output import Output, exit_code
from stayfinite.cli._report_file import check_output
from stayfinite.findings import Json, jsonable, worst_first
from stayfinite.readers.checkpoint import Location, Unreadable, locate
from stayfinite.readers.checkpoint.configured_rate import rates_in
from stayfinite.readers.checkpoint.files import base
from stayfinite.readers.checkpoint.locate import CERTAIN_ENDINGS, Layout
from stayfinite.report.bytes_progress import BytesProgress
from stayfinite.report.checkpoints import checkpoint_lines, rate_lines, trail_table
from stayfinite.report.terminal import table
from stayfinite.report.text import screen


@dataclass(slots=True)
class Request:
    """What the user asked for."""

    paths: list[str]
    output: Output = field(default_factory=Output)
    everything: bool = False
    jobs: int = 1
    config: str | None = None


def run_scan(request: Request, *, last_good: bool, quarantine_to: Path | None, yes: bool) -> int:
    """Scan all; then the history, then the quarantine. Under torchrun only rank 0 prints and moves."""
    team = RankTeam() if launched_by_torchrun() else None
    speaks = team is None or team.rank == 0
    verdicts, seconds = _verdicts(request, team)
    findings = worst_first([finding for verdict in verdicts for finding in verdict.findings])
    past = history(verdicts) if last_good else None
    if speaks:
        more: dict[str, Json] = {"checkpoints": [summary(verdict) for verdict in verdicts]}
        if past is not None:
            more["last_good"] = history_json(past)

        def text() -> Sequence[RenderableType]:
            results = [(verdict.checkpoint, verdict.findings) for verdict in verdicts]
            if past is not None:
                return _history_lines(past)
            nbytes = sum(verdict.checkpoint.nbytes for verdict in verdicts)
            return checkpoint_lines(results, everything=request.everything, seconds=seconds, nbytes=nbytes)

        request.output.deliver(findings, text, more)
        if quarantine_to is not None:
            _move(verdicts, quarantine_to, yes)
    if team is not None:
        team.close()
    return exit_code(findings, any(verdict.unreadable for verdict in verdicts))


def _verdicts(request: Request, team: RankTeam | None = None) -> tuple[list[CheckpointVerdict], float]:
    rates = rates_in(request.config) if request.config is not None else None
    if request.config is not None and not rates:
        raise Unreadable(
            f"{request.config}: no learning rate in this configuration (looked for lr, learning_rate...)"
        )
    locations = locate(request.paths)
    check_output(request.output.path, [file for location in locations for file in location.files])
    verdicts: list[CheckpointVerdict] = []
    quiet = team is not None and team.rank != 0
    with BytesProgress(sum(location.nbytes() for location in locations), quiet=quiet) as progress:
        for location in locations:
            verdict = judge(
                location, jobs=request.jobs, config_rates=rates, advance=progress.advance, team=team
            )
            if verdict.unreadable and _something_else(location):
                continue
            verdict.findings = request.output.chosen(verdict.findings)
            verdicts.append(verdict)
        return verdicts, progress.seconds


def _something_else(location: Location) -> bool:
    """A .bin or .pkl found in a folder need not be a checkpoint."""
    return (
        not location.given and location.layout is Layout.FILE and not location.path.endswith(CERTAIN_ENDINGS)
    )


def summary(verdict: CheckpointVerdict) -> dict[str, Json]:
    """One checkpoint in JSON."""
    checkpoint = verdict.checkpoint
    return {
        "path": checkpoint.path,
        "format": checkpoint.format,
        "bytes": checkpoint.nbytes,
        "step": checkpoint.step,
        "tensors": len(checkpoint.tensors),
        "healthy": verdict.healthy,
        "rates": jsonable(checkpoint.rates()),
        "schedulers": [s.kind for s in checkpoint.schedulers],
        "scales": jsonable([s.scale for s in checkpoint.scalers]),
    }


def history_json(past: History) -> dict[str, Json]:
    """The history in JSON."""
    good, bad = past.last_good, past.first_bad
    return {
        "path": good.checkpoint.path if good else None,
        "step": good.checkpoint.step if good else None,
        "first_bad": bad.checkpoint.path if bad else None,
        "first_bad_step": bad.checkpoint.step if bad else None,
        "first_bad_tensors": [tensor.name for tensor in past.first_tensors[:20]],
        "rates": jsonable(good.checkpoint.rates()) if good else {},
        "norms": [{"tensor": trail.tensor, "norms": jsonable(trail.norms)} for trail in past.trails],
    }


def _history_lines(past: History) -> list[RenderableType]:
    made: list[RenderableType] = []
    most = max(6, screen() - 28)
    if len(past.ordered) > most:
        made.append(Text(f"{len(past.ordered) - most} older checkpoints are not shown", style="dim"))
    made.append(
        table(("step", "", "checkpoint", "first finding"), [_history_row(v) for v in past.ordered[-most:]])
    )
    good, bad = past.last_good, past.first_bad
    if good is None:
        made.append(Text("no healthy checkpoint here", style="bold red"))
    else:
        made.append(
            Text(f"last good: {good.checkpoint.path} (step {good.checkpoint.step})", style="bold green")
        )
        made += rate_lines(good.checkpoint)
    if bad is None:
        made.append(Text("nothing went bad after it"))
        return made
    made.append(
        Text(f"trouble starts in {bad.checkpoint.path} (step {bad.checkpoint.step})", style="bold red")
    )
    made += rate_lines(bad.checkpoint)
    if past.first_tensors:
        first = past.first_tensors[0]
        others = len(past.first_tensors) - 1
        also = f", and {others} more tensors in the same checkpoint" if others else ""
        made.append(Text(f"  first bad tensor: {first.name} ({first.kind.value}){also}"))
    if past.trails:
        names = [str(verdict.checkpoint.step) for verdict in past.shown]
        made.append(trail_table(names, [(trail.tensor, trail.norms) for trail in past.trails]))
    return made


def _history_row(verdict: CheckpointVerdict) -> tuple[str, str, str, str]:
    reason = "" if verdict.healthy else verdict.findings[0].message.partition(", first at")[0]
    checkpoint = verdict.checkpoint
    return str(checkpoint.step), "healthy" if verdict.healthy else "bad", base(checkpoint.path), reason


def _move(verdicts: Sequence[CheckpointVerdict], folder: Path, yes: bool) -> None:
    bad = to_move(verdicts)
    if not bad:
        click.echo("nothing to quarantine: every checkpoint is healthy", err=True)
        return
    reason = refusal(verdicts, folder)
    if reason is not None:
        raise Unreadable(reason)
    for verdict in bad:
        for path in paths_of(verdict, verdicts):
            click.echo(f"bad: {path}", err=True)
    if not yes and not click.confirm(
        f"move {len(bad)} of {len(verdicts)} checkpoints to {folder}?", err=True
    ):
        click.echo("nothing was moved", err=True)
        return
    for verdict in bad:
        for path in quarantine(verdict, verdicts, folder):
            click.echo(f"moved to {path}", err=True)


def run_against(request: Request, other: str) -> int:
    """Differences per tensor between two checkpoints."""
    here, there = _one(request.paths), _one([other])
    differences = compare(here, there)
    changed = [d for d in differences if d.status != "same"]

    def text() -> Sequence[RenderableType]:
        shown = changed if request.everything else changed[: max(10, screen() - 8)]
        rows = [
            (
                d.tensor,
                d.status,
                *("" if v is None else f"{v:.3g}" for v in (d.largest, d.relative)),
                d.detail,
            )
            for d in shown
        ]
        made: list[RenderableType] = (
            [table(("tensor", "", "largest difference", "relative", ""), rows)] if rows else []
        )
        if len(shown) < len(changed):
            made.append(Text(f"and {len(changed) - len(shown)} more; --all shows everything", style="dim"))
        made.append(Text(f"{len(changed)} of {len(differences)} tensors differ", style="bold"))
        return made

    rows: list[Json] = [
        {"tensor": d.tensor, "status": d.status, "largest": jsonable(d.largest), "relative": jsonable(d.relative),
         "detail": d.detail}
        for d in differences
    ]  # fmt: skip
    request.output.deliver([], text, {"differences": rows})
    return 0


def run_repair(request: Request, out: Path, good: str, most: float) -> int:
    """Write a repaired copy, or say why not (exit code 1)."""
    try:
        done = repair(_one(request.paths), _one([good]), str(out), most=most, jobs=request.jobs)
    except RepairRefused as refusal:
        click.echo(f"not repaired: {refusal}", err=True)
        return 1
    more: dict[str, Json] = {"output": done.output, "replaced": list(done.replaced), "share": done.share}
    remaining = done.verdict.findings if done.verdict is not None else []

    def text() -> Sequence[RenderableType]:
        shown = ", ".join(done.replaced[:5]) + (
            f" and {len(done.replaced) - 5} more" if len(done.replaced) > 5 else ""
        )
        return [
            Text(f"wrote {done.output}", style="bold green"),
            Text(
                f"  {len(done.replaced)} tensors ({done.share:.1%} of all values) come from {good}: {shown}"
            ),
            Text("  the result was scanned and is healthy; the original is unchanged"),
        ]

    request.output.deliver(remaining, text, more)
    return 0


def _one(paths: list[str]) -> Location:
    found = locate(paths)
    if len(found) != 1:
        raise Unreadable(f"{', '.join(paths)}: there are {len(found)} checkpoints here; name one")
    return found[0]
