"""The doctor's answer in JSON, beside the findings."""

from __future__ import annotations

from stayfinite.findings import Json, jsonable
from stayfinite.findings.subjects.project import Project, ProjectRun
from stayfinite.report.doctor_text import DoctorReport


def report_json(report: DoctorReport) -> dict[str, Json]:
    return {
        "project": project_json(report.project),
        "read": dict(report.held),
        "plan": [step.to_json() for step in report.plan],
        "passed_over": list(report.passed_over),
        "left_out": list(report.left_out),
        "interrupted": report.interrupted,
    }


def project_json(project: Project) -> dict[str, Json]:
    return {"root": project.root, "runs": [_run(run) for run in project.runs]}


def _run(run: ProjectRun) -> dict[str, Json]:
    good = run.last_good()
    return {
        "folder": run.folder,
        "logs": [log.path for log in run.logs],
        "configs": list(run.configs),
        "last_step": jsonable(run.last_step),
        "failure": None
        if run.window is None
        else {
            "log": run.window.log,
            "line": run.window.line,
            "series": run.window.series,
            "first": run.window.first,
            "last": run.window.last,
            "to_end": run.window.to_end,
            "over": run.window.over,
            "grew_from": jsonable(run.window.grew_from),
        },
        "last_good": None if good is None else {"path": good.path, "step": good.step},
        "checkpoints": [
            {
                "path": saved.path,
                "step": saved.step,
                "healthy": saved.healthy,
                "outside_failure": run.outside_failure(saved),
                "probed": saved.probed,
                "dead": saved.dead,
                "reason": saved.reason,
            }
            for saved in run.saved
        ],
        "learning_rates": [
            {"origin": c.origin, "words": c.words, "value": jsonable(c.value), "file": c.file, "line": c.line}
            for c in run.rates
        ],
        "precisions": [
            {
                "origin": c.origin,
                "words": c.words,
                "precision": c.precision,
                "file": c.file,
                "line": c.line,
                "acts": c.acts,
            }
            for c in run.precisions
        ],
    }
