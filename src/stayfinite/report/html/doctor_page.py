"""The doctor's answer as one HTML page, made of the same parts as the page of a run."""

from __future__ import annotations

from collections.abc import Sequence

from stayfinite.findings.advice import CheckedItem
from stayfinite.report.doctor_text import DoctorReport
from stayfinite.report.html.page import render_page
from stayfinite.report.text import tally


def render_doctor(report: DoctorReport) -> str:
    failed = [run for run in report.project.runs if run.window is not None]
    bad = any(finding.severity.value == "error" for finding in report.findings)
    headline = (
        f"{len(failed)} of {len(report.project.runs)} runs failed"
        if failed
        else tally(report.findings).capitalize()
    )
    return render_page(
        "doctor.html",
        data={},
        title=f"{headline} - {report.project.root}",
        headline=headline,
        bad=bad,
        report=report,
    )


def render_checked(
    title: str, good: bool, reasons: Sequence[str], items: Sequence[CheckedItem], root: str
) -> str:
    """Before a resume, and the prevention list."""
    return render_page(
        "checked.html", data={}, title=title, good=good, reasons=reasons, items=items, root=root
    )
