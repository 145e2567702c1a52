"""What `stayfinite logs` does: examine, plot, compare, follow. Prints; the work is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from stayfinite.cli._output import Output, exit_code
from stayfinite.findings import Finding, Json, Severity, jsonable, worst_first
from stayfinite.findings.subjects.log import CORE, ConfiguredLogRate, Log, Role
from stayfinite.logs.compare import compare
from stayfinite.logs.examine import LogVerdict, examine_log, find_logs, judge
from stayfinite.logs.follow import Follower, News
from stayfinite.readers.checkpoint.files import why_not_there
from stayfinite.readers.log import Block, UnreadableLog, core, role_of
from stayfinite.report import log_html, log_png
from stayfinite.report.bytes_progress import BytesProgress
from stayfinite.report.log_text import log_lines
from stayfinite.report.terminal import console, table
from stayfinite.report.text import lines


@dataclass(slots=True)
class Request:
    """What the user asked for."""

    paths: list[str]
    output: Output = field(default_factory=Output)
    config: str | None = None
    metrics: tuple[str, ...] = ()
    plot: Path | None = None
    chart: bool | None = None
    everything: bool = False


def configured_rates(path: str | None) -> list[ConfiguredLogRate]:
    """The learning rates that a configuration asks for."""
    if path is None:
        return []
    from stayfinite.readers.checkpoint import Unreadable
    from stayfinite.readers.checkpoint.configured_rate import rates_in

    try:
        rates = rates_in(path)
    except Unreadable as trouble:
        raise UnreadableLog(str(trouble)) from trouble
    if not rates:
        raise UnreadableLog(
            f"{path}: no learning rate in this configuration (looked for lr, learning_rate...)"
        )
    return [ConfiguredLogRate(rate.key, rate.value, rate.file) for rate in rates]


def run_logs(request: Request) -> int:
    """Examine every log; findings, a chart, a plot."""
    rates = configured_rates(request.config)
    if request.plot is not None:
        _check_plot(request.plot)
    verdicts = _verdicts(request, rates)
    findings = worst_first([finding for verdict in verdicts for finding in verdict.findings])
    if request.plot is not None and verdicts:
        _plot(request, verdicts)
    more: dict[str, Json] = {"logs": [summary(verdict) for verdict in verdicts]}

    def text() -> Sequence[RenderableType]:
        screen = console()
        wanted = (
            request.chart if request.chart is not None else screen.is_terminal and request.output.path is None
        )
        results = [(verdict.log, verdict.findings) for verdict in verdicts]
        return log_lines(
            results, everything=request.everything, width=screen.width if wanted else 0, also=request.metrics
        )

    if verdicts:
        request.output.deliver(findings, text, more)
    # One log among several that cannot be read is named and passed over.
    return exit_code(findings, unreadable=not verdicts)


def _verdicts(request: Request, rates: Sequence[ConfiguredLogRate]) -> list[LogVerdict]:
    files: list[tuple[str, bool]] = []
    for path in request.paths:
        place = Path(path)
        if not place.exists():
            click.echo(f"Error: {path}: {why_not_there(path)}", err=True)
            continue
        found = find_logs(path)
        if not found:
            click.echo(f"Error: {path}: no log in this folder (looked for .jsonl .log .csv .tsv .wandb, "
                       "TensorBoard events and trainer_state.json)", err=True)  # fmt: skip
        files += [(name, name == path) for name in found]
    verdicts: list[LogVerdict] = []
    total = sum(Path(name).stat().st_size for name, _ in files)
    with BytesProgress(total, what="reading") as progress:
        for name, given in files:
            verdict = examine_log(name, rates=rates, also=request.metrics, advance=progress.advance)
            if verdict.unreadable is None and not given and not verdict.log.of_role(*CORE):
                continue  # some other log of the same folder
            if verdict.unreadable is None:
                verdict.findings = request.output.chosen(verdict.findings)
                verdicts.append(verdict)
                continue
            label = "Error" if given else "passed over"
            click.echo(f"{label}: {verdict.unreadable}", err=True)
    return verdicts


def summary(verdict: LogVerdict) -> dict[str, Json]:
    """One log in JSON."""
    log = verdict.log
    trouble = log.trouble
    return {
        "path": log.path,
        "format": log.format,
        "records": log.records,
        "first_step": log.first_step,
        "last_step": log.last_step,
        "healthy": verdict.healthy,
        "first_nonfinite": None
        if trouble is None
        else {
            "series": trouble.series,
            "step": trouble.point.step,
            "line": trouble.point.line,
            "value": jsonable(trouble.point.value),
            "around": jsonable(trouble.around),
        },
        "series": {
            name: {
                "role": series.role.value,
                "count": series.count,
                "not_finite": series.bad,
                "min": jsonable(series.minimum) if series.count > series.bad else None,
                "max": jsonable(series.maximum) if series.count > series.bad else None,
                "first": jsonable(series.first.value) if series.first else None,
                "last": jsonable(series.last.value) if series.last else None,
            }
            for name, series in log.series.items()
            if series.role is not Role.METRIC or series.bad
        },
        "happened": jsonable(log.happened),
        "actions": jsonable(log.actions),
    }


def _check_plot(path: Path) -> None:
    if path.suffix not in (".png", ".html"):
        raise click.UsageError(f"--plot {path}: the name must end with .png or .html")
    if path.suffix == ".png" and not log_png.available():
        raise click.UsageError(
            f"--plot {path}: a PNG needs matplotlib; install it with: pip install 'stayfinite[plot]', or plot to .html"
        )


def _plot(request: Request, verdicts: Sequence[LogVerdict]) -> None:
    path = request.plot
    if path is None:
        return
    try:
        if path.suffix == ".png":
            log_png.draw([verdict.log for verdict in verdicts], path, request.metrics)
        else:
            page = log_html.render([(v.log, v.findings) for v in verdicts], request.metrics)
            path.write_text(page, encoding="utf-8")
    except OSError as trouble:
        raise click.ClickException(
            f"{path}: the plot cannot be written ({trouble.strerror or trouble})"
        ) from trouble
    click.echo(f"plot written to {path}", err=True)


def run_compare(request: Request) -> int:
    """Where two runs part."""
    one, other = request.paths
    total = sum(Path(path).stat().st_size for path in request.paths if Path(path).is_file())
    with BytesProgress(total, what="reading") as progress:
        partings = compare(one, other, request.metrics, progress.advance)

    def shown(place: tuple[float, float, float] | None) -> str:
        return "" if place is None else f"{place[0]:g}: {place[1]:.6g} | {place[2]:.6g}"

    def text() -> Sequence[RenderableType]:
        rows = [
            (p.series, str(p.compared), shown(p.first) or "never", shown(p.apart) or "never", shown(p.last))
            for p in partings
        ]
        made: list[RenderableType] = [
            table(("series", "compared", "first difference", "apart from", "last common step"), rows)
        ]
        first = next((p for p in partings if p.first is not None), None)
        none_common = all(p.compared == 0 for p in partings)
        if none_common:
            made.append(Text("the logs have no step in common", style="yellow"))
        elif first is None or first.first is None:
            made.append(Text("the two runs agree wherever both have a value", style="green"))
        else:
            made.append(Text(f"they part at step {first.first[0]:g}, first in {first.series}", style="bold"))
        return made

    more: dict[str, Json] = {
        "compare": [
            {"series": p.series, "role": p.role, "compared": p.compared, "first": jsonable(p.first),
             "apart": jsonable(p.apart), "last": jsonable(p.last)}
            for p in partings
        ]
    }  # fmt: skip
    request.output.deliver([], text, more)
    return 0


def run_follow(request: Request, idle: float | None, keep_going: bool) -> int:
    """Print the numbers that matter as they come; end with 1 when a finding at error level appears."""
    path = request.paths[0]
    rates = configured_rates(request.config)
    if not Path(path).exists():
        click.echo(f"waiting for {path}", err=True)
    screen = console()
    known: set[str] = set()
    log: Log | None = None
    findings: list[Finding] = []
    try:
        for news in Follower(path, idle).news():
            log = news.log
            if news.note:
                click.echo(news.note, err=True)
            _show(news, request.metrics)
            findings = request.output.chosen(judge(log, rates).findings)
            fresh = [f for f in findings if f.code not in known and f.severity is not Severity.INFO]
            known |= {finding.code for finding in fresh}
            for line in lines(fresh):
                screen.print(line, soft_wrap=True)
            if any(finding.severity is Severity.ERROR for finding in fresh) and not keep_going:
                click.echo("\a", err=True, nl=False)
                break
    except KeyboardInterrupt:
        click.echo("", err=True)
    if log is None:
        click.echo(f"Error: {path}: nothing was written to it", err=True)
        return 2
    if request.output.form != "text" or request.output.path is not None:
        verdict = LogVerdict(log, findings)
        request.output.deliver(findings, lambda: log_lines([(log, findings)]), {"logs": [summary(verdict)]})
    return exit_code(findings)


_STYLES = {Role.LOSS: "cyan", Role.COMPONENT: "cyan", Role.EVALUATION: "blue", Role.NORM: "magenta", Role.RATE: "dim",
           Role.SCALE: "dim"}  # fmt: skip
_MOST_SHOWN = 20


def _show(news: News, also: tuple[str, ...]) -> None:
    """The last records of what came, only the numbers that matter; bad ones in red, and none of them left out."""
    if news.block is None:
        return
    block = news.block
    alarms = {
        h.point.line: h for h in news.happenings if h.what in ("spike", "resume", "scale-fell", "rate-jump")
    }
    bad = {row for name, column in block.columns.items() if core(name)
           for row, value in zip(column.rows, column.values, strict=True) if not math.isfinite(value)}  # fmt: skip
    rows = sorted({*range(max(0, len(block) - _MOST_SHOWN), len(block)), *sorted(bad)[:_MOST_SHOWN]})
    values = _by_row(block, also, set(rows))
    screen = console()
    for row in rows:
        if not values.get(row):
            continue
        line = Text(f"{_step(block, row):>10}  ", style="dim")
        for name, value in values[row]:
            style = _STYLES.get(role_of(name), "") if math.isfinite(value) else "bold red"
            line.append(f"{name} {value:.5g}  ", style=style)
        alarm = alarms.get(block.lines[row])
        if alarm is not None:
            line.append(f"<- {alarm.what.replace('-', ' ')}", style="yellow")
        screen.print(line, soft_wrap=True)


def _step(block: Block, row: int) -> str:
    return f"step {block.steps[row]:g}" if len(block.steps) else f"line {block.lines[row]}"


def _by_row(block: Block, also: tuple[str, ...], rows: set[int]) -> dict[int, list[tuple[str, float]]]:
    found: dict[int, list[tuple[str, float]]] = {}
    for name, column in block.columns.items():
        if core(name) or name in also:
            for row, value in zip(column.rows, column.values, strict=True):
                if row in rows:
                    found.setdefault(row, []).append((name, value))
    return found
