"""The doctor's answer as text: what was found, what it says together, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.console import RenderableType
from rich.text import Text

from stayfinite.findings import Finding
from stayfinite.findings.advice import CheckedItem, PlanStep, Status
from stayfinite.findings.subjects.project import Project, ProjectRun
from stayfinite.report.text import lines, screen, tally

_MARK = {
    Status.DONE: ("done", "green"),
    Status.MISSING: ("missing", "bold red"),
    Status.NOT_APPLICABLE: ("n/a", "dim"),
    Status.UNKNOWN: ("unknown", "yellow"),
}
_MOST_NAMED = 5


@dataclass(slots=True)
class DoctorReport:
    """What the doctor has to say, in whatever form."""

    project: Project
    held: list[tuple[str, int]] = field(default_factory=list)  # what was read, how many
    findings: list[Finding] = field(default_factory=list)
    plan: list[PlanStep] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # the budget was used up
    interrupted: bool = False


def doctor_lines(report: DoctorReport, *, everything: bool = False) -> list[RenderableType]:
    """The whole answer; findings at most a screen unless `everything`, the plan always whole."""
    held = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in report.held if count)
    made: list[RenderableType] = [Text(f"stayfinite doctor: {report.project.root}", style="bold")]
    made.append(Text(f"  read: {held or 'nothing'}", style="dim"))
    for run in report.project.runs:
        made += run_lines(run)
    made.append(Text("\nFindings", style="bold"))
    room = max(24, screen() - 16) if not everything else None
    made += lines([_placed(finding) for finding in report.findings], everything=everything, room=room)
    made.append(Text(f"  {tally(report.findings)}"))
    made += _not_read(report, everything)
    if report.plan:
        made.append(Text("\nPlan", style="bold"))
        made += plan_lines(report.plan)
    return made


def _placed(finding: Finding) -> Finding:
    """A finding about a whole file names it; the lines of findings name files with a line only."""
    if finding.file is None or finding.line or finding.file in finding.message:
        return finding
    return replace(finding, message=f"{finding.file}: {finding.message}")


def run_lines(run: ProjectRun) -> list[RenderableType]:
    """One run: its window, its checkpoints, and what each place says of rate and precision."""
    made: list[RenderableType] = [Text(f"\nRun {run.folder}", style="bold")]
    if run.logs:
        log = max(run.logs, key=lambda one: (one.format != "text", len(one.series)))
        steps = (
            f"steps {log.first_step:g} to {log.last_step:g}"
            if log.last_step is not None and log.first_step is not None
            else f"{log.records} records"
        )
        made.append(Text(f"  log           {log.path}, {steps}"))
    if run.window is not None:
        made.append(Text(f"  failure       {run.window.series} not finite: {run.window.words}", style="red"))
    if run.configs:
        made.append(Text(f"  configuration {', '.join(run.configs)}"))
    if run.saved:
        good = run.last_good()
        made.append(Text(f"  checkpoints   {_saved_words(run)}"))
        if good is not None:
            word = "last good" if run.window is not None or any(not s.fit for s in run.saved) else "newest"
            made.append(Text(f"  {word:<13} {good.path} ({good.step_words})", style="green"))
        else:
            made.append(Text("  last good     none is known to be good", style="red"))
    return made + claim_lines(run)


def claim_lines(run: ProjectRun) -> list[RenderableType]:
    """What each place says, one line a place."""
    rows = [
        ("learning rate", c.origin, f"{c.words} {c.value:.4g}", _place(c.file, c.line)) for c in run.rates
    ]
    rows += [
        (
            "precision",
            c.origin,
            f"{c.precision} ({c.words})" + ("" if c.acts else ", may not act"),
            _place(c.file, c.line),
        )
        for c in run.precisions
    ]
    unique = list(dict.fromkeys(rows))
    width = max((len(row[2]) for row in unique), default=0)
    width = min(width, 44)
    return [
        Text(f"  {what:<14}{origin:<14} {says:<{width}}  {place}", style="dim")
        for what, origin, says, place in unique
    ]


def _saved_words(run: ProjectRun) -> str:
    bad = sum(not saved.healthy for saved in run.saved)
    inside = len(run.saved_in_failure())
    dead = sum(saved.dead is not None for saved in run.saved)
    parts = [f"{len(run.saved)}"]
    parts += [f"{bad} damaged or not finite"] if bad else []
    parts += [f"{inside} finite, but written during the failure"] if inside else []
    parts += [f"{dead} finite, but dead by the probe"] if dead else []
    return ", ".join(parts)


def _place(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file


def _not_read(report: DoctorReport, everything: bool) -> list[RenderableType]:
    made: list[RenderableType] = []
    if report.interrupted:
        made.append(Text("  interrupted: this is what was read so far", style="yellow"))
    if report.left_out:
        named = ", ".join(report.left_out[:_MOST_NAMED])
        more = f" and {len(report.left_out) - _MOST_NAMED} more" if len(report.left_out) > _MOST_NAMED else ""
        made.append(
            Text(f"  not looked at within the budget (--budget 0: no limit): {named}{more}", style="yellow")
        )
    shown = report.passed_over if everything else report.passed_over[:_MOST_NAMED]
    made += [Text(f"  passed over: {sentence}", style="yellow") for sentence in shown]
    if len(shown) < len(report.passed_over):
        made.append(
            Text(
                f"  and {len(report.passed_over) - len(shown)} more passed over; --all names them",
                style="dim",
            )
        )
    return made


def plan_lines(plan: Sequence[PlanStep]) -> list[RenderableType]:
    made: list[RenderableType] = []
    for number, step in enumerate(plan, 1):
        made.append(Text(f"  {number}. {step.title}", style="bold"))
        if step.why:
            made.append(Text(f"     {step.why}"))
        for setting in step.settings:
            made.append(
                Text(
                    f"     {setting.name}: {setting.old} -> {setting.new}   ({setting.place}; {setting.why})"
                )
            )
        made += [Text(f"       {command}", style="cyan") for command in step.commands]
    return made


def item_lines(
    items: Sequence[CheckedItem], marks: dict[Status, tuple[str, str]] | None = None
) -> list[RenderableType]:
    """A checked list."""
    made: list[RenderableType] = []
    for item in items:
        shown = item.status if item.blocking or item.status is not Status.MISSING else Status.UNKNOWN
        word, style = (marks or _MARK)[shown]
        line = Text("  ")
        line.append(f"{word:<9}", style=style)
        line.append(item.title, style="bold")
        made.append(line)
        where = f"  ({', '.join(item.where)})" if item.where else ""
        made.append(Text(f"           {item.detail}{where}"))
    return made


RESUME_MARKS = {
    Status.DONE: ("ok", "green"),
    Status.MISSING: ("problem", "bold red"),
    Status.NOT_APPLICABLE: ("n/a", "dim"),
    Status.UNKNOWN: ("look", "yellow"),
}
