"""From findings to a short plan: what to do first, which checkpoint to start from, settings old -> new, commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stayfinite.doctor.examine import Examination
from stayfinite.doctor.runs import is_record
from stayfinite.doctor.script import training_script
from stayfinite.doctor.suspects import rank_suspects
from stayfinite.findings import Finding
from stayfinite.findings.advice import PlanStep, Setting
from stayfinite.findings.subjects.project import Project, ProjectRun
from stayfinite.lint.presets import PRESETS, moves
from stayfinite.report.html.words import count

_MOST_SUSPECTS = 3
_RESUME_OPTIONS = (
    "--resume", "--resume_from_checkpoint", "--resume-from", "--resume_from", "--ckpt", "--checkpoint",
)  # fmt: skip


def make_plan(found: Examination, project: Project, findings: Sequence[Finding]) -> list[PlanStep]:
    """At most five steps, in the order in which they should be done."""
    failed = _failed_run(project)
    steps = [
        *_cure(found, failed, findings),
        *_start(project, failed),
        *_settle(found, failed),
        *_go_on(found, project, failed),
    ]
    return [step for step in steps if step.title]


def _failed_run(project: Project) -> ProjectRun | None:
    """The run that failed last: the one people ask about."""
    failed = [run for run in project.runs if run.window is not None or any(not s.fit for s in run.saved)]
    return max(failed, key=_written, default=None)


def _written(run: ProjectRun) -> float:
    times = [saved.written for saved in run.saved if saved.written is not None]
    for log in run.logs:
        try:
            times.append(Path(log.path).stat().st_mtime)
        except OSError:
            continue  # gone meanwhile
    return max(times, default=0.0)


def _cure(found: Examination, failed: ProjectRun | None, findings: Sequence[Finding]) -> list[PlanStep]:
    suspects = rank_suspects(findings, failed, _default_configs(found))
    made: list[PlanStep] = []
    for place, finding in enumerate(suspects[:_MOST_SUSPECTS]):
        where = f"{finding.file}:{finding.line}" if finding.file and finding.line else finding.file or ""
        named = f"{finding.code} {finding.name}"
        title = f"{'First' if place == 0 else 'Then'} look at {f'{where} ({named})' if where else named}"
        commands = [f"stayfinite explain {finding.code}"]
        if "edit" in finding.evidence and finding.file:
            commands.append(f"stayfinite lint {shlex.quote(finding.file)} --fix")
        end = "" if finding.message.endswith(("?", ".")) else "."
        made.append(PlanStep(title, f"{finding.message}{end} What to do: {finding.fix}", commands=commands))
    if made or failed is None or failed.window is None:
        return made
    script = training_script(found.lint.read)
    command = f"stayfinite run {shlex.quote(script)}" if script else "stayfinite run train.py"
    return [
        PlanStep(
            "First find the operation where it begins",
            "nothing in configuration, source or data explains the failure; a guarded run names operation and line",
            commands=[command],
        )
    ]


def _default_configs(found: Examination) -> list[str]:
    """The configurations that the training script itself names."""
    script = training_script(found.lint.read)
    text = next((source.text for source in found.lint.read if source.path == script), "")
    return [config.path for config in found.lint.configs if f'"{Path(config.path).name}"' in text]


def _start(project: Project, failed: ProjectRun | None) -> list[PlanStep]:
    if failed is None or not failed.saved:
        return []
    good = failed.last_good()
    unfit = [saved for saved in failed.saved if not saved.healthy]
    commands: list[str] = []
    if good is not None:
        commands.append(
            f"stayfinite doctor {shlex.quote(project.root)} --before-resume {shlex.quote(good.path)}"
        )
    if unfit:
        folder = Path(failed.folder) / "bad"
        commands.append(
            f"stayfinite scan {shlex.quote(failed.folder)} --quarantine {shlex.quote(str(folder))}"
        )
    if good is None:
        doubtful = [saved for saved in failed.saved if saved.fit and failed.outside_failure(saved) is None]
        if doubtful:
            title = f"Check {doubtful[-1].path} before you start from it: its step is not known"
            return [
                PlanStep(
                    title,
                    "it is finite; whether it is from before the failure cannot be told",
                    commands=commands,
                )
            ]
        why = "; ".join(
            part
            for part in (
                f"{len(unfit)} of {len(failed.saved)} checkpoints are damaged or not finite" if unfit else "",
                f"{count(len(failed.saved_in_failure()), 'finite one')} written during the failure"
                if failed.saved_in_failure()
                else "",
            )
            if part
        )
        return [PlanStep("Start again from the beginning: no checkpoint is good", why, commands=commands)]
    why = f"{good.step_words}, whole and finite" + (
        ", and the probe's values are finite" if good.probed else ""
    )
    if failed.window is not None:
        why += f"; the failure is at {failed.window.words}"
        if failed.grown(good):
            why += f". The run had been growing since step {failed.window.grew_from:g}: better, start again"
        elif failed.window.grew_from is not None:
            why += f", the growth towards it began at step {failed.window.grew_from:g}"
        if failed.failed_at_once(good) and not good.probed:
            why += (
                ". The step that failed began with these very weights: if it was not the batch, it fails again; "
                "a probe tells (--probe), or take an earlier one"
            )
    return [PlanStep(f"Start from {good.path}", why, commands=commands)]


def _settle(found: Examination, failed: ProjectRun | None) -> list[PlanStep]:
    """Settings towards the safe side, for a run that failed and whose configuration is known."""
    if failed is None or failed.window is None:
        return []
    made: list[PlanStep] = []
    preset = PRESETS["conservative"]
    by_rate = failed.window.grew_from is not None
    for config in found.lint.configs:
        if config.path not in failed.configs or is_record(config.path):
            continue
        settings = [
            Setting(move.entry.name, move.entry.text, move.new, f"{config.path}:{move.entry.line}", move.why)
            for move in moves(config, preset)
        ]
        if settings:
            command = f"stayfinite lint {shlex.quote(config.path)} --preset conservative | patch -p1"
            made.append(
                PlanStep(
                    f"Change {config.path} towards the safe side"
                    if by_rate
                    else f"If it fails again after the cure, change {config.path} towards the safe side",
                    "the run grew towards its failure: settle it first, then raise the rate again"
                    if by_rate
                    else "these settings make a failure rarer; they do not take the cause away",
                    settings,
                    [command],
                )
            )
    return made[:1]


def _go_on(found: Examination, project: Project, failed: ProjectRun | None) -> list[PlanStep]:
    script = training_script(found.lint.read)
    if script is None:
        return []
    command = f"stayfinite run {shlex.quote(script)}"
    good = failed.last_good() if failed is not None else None
    if failed is None:
        if any(run.logs for run in project.runs):
            return []
        return [
            PlanStep(
                "Before a long run: check the list, then run guarded",
                "a guarded run stops a bad step before it touches the weights, and names its line",
                commands=[f"stayfinite doctor {shlex.quote(project.root)} --checklist", command],
            )
        ]
    option = _option(found, script, _RESUME_OPTIONS)
    config = _option(found, script, ("--config", "--cfg", "--config-file", "--config_file"))
    if config is not None and len(failed.configs) == 1 and not is_record(failed.configs[0]):
        command += f" {config} {shlex.quote(failed.configs[0])}"
    if good is not None and option is not None:
        command += f" {option} {shlex.quote(good.path)}"
    return [
        PlanStep(
            "Run on guarded",
            "a bad step is refused before it touches the weights, and its operation and line are named"
            + ("" if good is None or option is not None else "; how this script resumes is not known here"),
            commands=[command],
        )
    ]


def _option(found: Examination, script: str, names: Sequence[str]) -> str | None:
    """The first of these options that the script itself declares."""
    text = next((source.text for source in found.lint.read if source.path == script), "")
    return next((name for name in names if f'"{name}"' in text or f"'{name}'" in text), None)
