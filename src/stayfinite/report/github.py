"""Findings as annotations of a GitHub workflow: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from stayfinite.findings import Finding, Severity

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(findings: Sequence[Finding]) -> str:
    """`::error file=...,line=...,title=...::message` for each finding."""
    return "\n".join(_line(finding) for finding in findings)


def _line(finding: Finding) -> str:
    options = {"title": f"{finding.code} {finding.name}"}
    if finding.file is not None:
        options["file"] = finding.file
    if finding.line is not None:
        options["line"] = str(finding.line)
    if finding.column is not None:
        options["col"] = str(finding.column)
    listed = ",".join(f"{key}={_option(value)}" for key, value in options.items())
    return (
        f"::{_COMMAND[finding.severity]} {listed}::{_text(f'{finding.message}. What to do: {finding.fix}')}"
    )


def _text(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _option(value: str) -> str:
    return _text(value).replace(":", "%3A").replace(",", "%2C")
