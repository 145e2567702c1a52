"""What `stayfinite doctor` does: examine, compare, plan, print. The work is in stayfinite.doctor."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from stayfinite.checkpoint.verify import CheckpointVerdict, verify
from stayfinite.cli._output import Output, exit_code
from stayfinite.cli._report_file import check_output
from stayfinite.doctor.budget import Budget
from stayfinite.doctor.checklist import TEN, check_list
from stayfinite.doctor.compare import all_findings, compare
from stayfinite.doctor.examine import Examination, Progress, examine_project
from stayfinite.doctor.inventory import take_inventory
from stayfinite.doctor.model_probe import find_factory, probe_model, takes_nothing
from stayfinite.doctor.plan import make_plan
from stayfinite.doctor.probe import FunctionProbe, WrongProbe
from stayfinite.doctor.resume import ResumeCheck, check_resume
from stayfinite.doctor.runs import run_of
from stayfinite.findings import Finding, Json
from stayfinite.findings.advice import CheckedItem, Status
from stayfinite.findings.subjects.project import Project
from stayfinite.lint.settings import Settings, WrongSettings, find_settings
from stayfinite.report.doctor_json import project_json, report_json
from stayfinite.report.doctor_text import RESUME_MARKS, DoctorReport, doctor_lines, item_lines
from stayfinite.report.html.doctor_page import render_checked, render_doctor
from stayfinite.report.html.incident_page import write_whole
from stayfinite.report.status_line import FileProgress

_DEEPEST_CALLS = 5000


@dataclass(slots=True)
class Request:
    """What the user asked for."""

    folder: str
    output: Output = field(default_factory=Output)
    before_resume: str | None = None
    checklist: bool = False
    html: Path | None = None
    probes: tuple[str, ...] = ()
    budget: float = 60.0
    jobs: int = 1
    everything: bool = False


def run(request: Request) -> int:
    """Examine and deliver; the exit code."""
    try:
        probe, factory = _probes(request)
        settings = find_settings(Path(request.folder))
        wanted = _checkpoint(request)
        check_output(request.html, [])
        found, budget = _examine(request, settings)
        project = compare(found, probe)
        if wanted is None and not request.checklist and not found.interrupted:
            _probe_model(request, found, factory, settings)
    except (WrongProbe, WrongSettings, _Unusable) as trouble:
        click.echo(f"Error: {trouble}", err=True)
        return 2
    if not found.read_anything and wanted is None:
        for sentence in found.passed_over:
            click.echo(f"passed over: {sentence}", err=True)
        click.echo(
            f"Error: {request.folder}: nothing here could be read (looked for configurations, Python sources, logs, "
            "checkpoints and data)",
            err=True,
        )
        return 2
    findings = request.output.chosen(all_findings(found, project))
    if wanted is not None:
        code = _resume(request, found, project, wanted)
    elif request.checklist:
        code = _checklist(request, found, project, findings)
    else:
        code = _report(request, found, project, findings, budget)
    return 130 if found.interrupted else code


def _probes(request: Request) -> tuple[FunctionProbe | None, str | None]:
    """What was named with --probe: a function of a checkpoint takes its path, a factory takes nothing."""
    checkpoint: FunctionProbe | None = None
    factory: str | None = None
    for text in request.probes:
        file, _, function = text.rpartition(":")
        if text == "off":
            continue
        if not file.endswith(".py") or takes_nothing(Path(file), function):
            factory = text
            if not file or not function.isidentifier():
                raise WrongProbe(
                    f"--probe {text}: name a module or file and a function in it, such as train:make"
                )
        else:
            checkpoint = FunctionProbe.parse(text)
    return checkpoint, factory


def _probe_model(request: Request, found: Examination, asked: str | None, settings: Settings) -> None:
    """It runs code of the project, in a sandbox, and is said to."""
    if "off" in request.probes:
        return
    factory = find_factory(request.folder, asked, settings.probe, settings.file)
    if factory is None:
        return
    click.echo(
        f"probing {factory.name} in a sandbox (it imports the project's code; --probe off leaves it out)",
        err=True,
    )
    found.model = probe_model(factory, request.folder, request.budget or math.inf)
    if found.model.not_run:
        if asked is not None:
            raise WrongProbe(f"--probe {asked}: {found.model.not_run}")
        found.passed_over.append(found.model.not_run)


class _Unusable(Exception):
    """What the user named cannot be used; the message says why."""


def _checkpoint(request: Request) -> CheckpointVerdict | None:
    """The checkpoint that was named, examined before anything else: without it there is nothing to answer."""
    if not Path(request.folder).is_dir():
        there = (
            "is a file; name the folder of the project"
            if Path(request.folder).exists()
            else "there is no such folder"
        )
        raise _Unusable(f"{request.folder}: {there}")
    if request.before_resume is None:
        return None
    verdict = verify(request.before_resume, jobs=request.jobs, config_rates=())
    if verdict.unreadable is not None and not Path(request.before_resume).exists():
        raise _Unusable(verdict.unreadable)
    return verdict


def _examine(request: Request, settings: Settings) -> tuple[Examination, Budget]:
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST_CALLS))  # long sums nest deeply
    budget = Budget(request.budget)
    with FileProgress() as progress:
        inventory = take_inventory(request.folder)
        found = examine_project(inventory, settings, budget, Progress(file=progress.advance), request.jobs)
    return found, budget


def _report(
    request: Request, found: Examination, project: Project, findings: Sequence[Finding], budget: Budget
) -> int:
    report = DoctorReport(
        project,
        [
            ("configuration", len(found.lint.configs)),
            ("source", found.lint.sources),
            ("launcher", len(found.launchers)),
            ("log", len(found.logs)),
            ("checkpoint", len(found.checkpoints)),
            ("file of weights alone", len(found.weights)),
            ("data file", len(found.data)),
            ("incident", len(found.incidents)),
            ("probed model", int(found.model is not None and not found.model.not_run)),
        ],
        list(findings),
        make_plan(found, project, findings),
        found.passed_over,
        budget.left_out,
        found.interrupted,
    )
    request.output.deliver(
        findings, lambda: doctor_lines(report, everything=request.everything), report_json(report)
    )
    _write_page(request, lambda: render_doctor(report))
    return exit_code(findings)


def _resume(request: Request, found: Examination, project: Project, verdict: CheckpointVerdict) -> int:
    run_here = run_of(project, verdict)
    check = check_resume(found, run_here, verdict)
    more: dict[str, Json] = {
        "verdict": "go" if check.go else "no-go",
        "checkpoint": check.checkpoint,
        "reasons": list(check.reasons),
        "checks": [item.to_json() for item in check.items],
    }
    request.output.deliver(verdict.findings, lambda: _resume_lines(check), more)
    title = f"{'Go' if check.go else 'No-go'}: resume from {check.checkpoint}"
    _write_page(request, lambda: render_checked(title, check.go, check.reasons, check.items, project.root))
    return 0 if check.go else 1


def _resume_lines(check: ResumeCheck) -> list[RenderableType]:
    made: list[RenderableType] = [
        Text(f"stayfinite doctor: before a resume from {check.checkpoint}", style="bold")
    ]
    made += item_lines(check.items, RESUME_MARKS)
    if check.go:
        made.append(Text("GO: nothing speaks against it", style="bold green"))
        if any(item.status is Status.UNKNOWN for item in check.items):
            made.append(Text("    (items marked look could not be decided here)", style="dim"))
        return made
    made.append(
        Text(f"NO-GO: {len(check.reasons)} reason{'s' if len(check.reasons) != 1 else ''}", style="bold red")
    )
    made += [Text(f"  - {reason}") for reason in check.reasons]
    return made


def _checklist(request: Request, found: Examination, project: Project, findings: Sequence[Finding]) -> int:
    items = check_list(found, project, findings)
    more: dict[str, Json] = {
        "checklist": [item.to_json() for item in items],
        "project": project_json(project),
    }
    request.output.deliver(findings, lambda: _checklist_lines(request.folder, items), more)
    missing = [item for item in items if item.status is Status.MISSING]
    title = (
        f"{len(missing)} of {len(items)} items are missing" if missing else "Nothing on the list is missing"
    )
    _write_page(request, lambda: render_checked(title, not missing, [], items, project.root))
    return 1 if missing else 0


def _checklist_lines(folder: str, items: Sequence[CheckedItem]) -> list[RenderableType]:
    made: list[RenderableType] = [Text(f"stayfinite doctor: prevention list of {folder}", style="bold")]
    made += item_lines(items[:TEN])
    made.append(Text("  and for machine, record and repetition:", style="dim"))
    made += item_lines(items[TEN:])
    counts = [(status, sum(item.status is status for item in items)) for status in Status]
    made.append(Text(", ".join(f"{count} {status.value}" for status, count in counts if count), style="bold"))
    return made


def _write_page(request: Request, page: Callable[[], str]) -> None:
    if request.html is None:
        return
    try:
        write_whole(request.html, page())
    except OSError as trouble:
        raise click.ClickException(
            f"{request.html}: the page cannot be written ({trouble.strerror or trouble})"
        ) from trouble
    click.echo(f"page written to {request.html}", err=True)
