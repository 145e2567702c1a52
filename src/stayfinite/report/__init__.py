"""Output: one file = one format. `render` is the common way for every command that yields findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stayfinite.findings import Finding

FORMATS = ("text", "json", "sarif", "github")


def render(findings: Sequence[Finding], form: str, more: Mapping[str, Any] | None = None) -> str:
    """Findings in one of the machine-readable formats. `more` holds further keys for JSON."""
    if form == "json":
        from stayfinite.report import json

        return json.render(findings, more)
    if form == "sarif":
        from stayfinite.report import sarif

        return sarif.render(findings)
    if form == "github":
        from stayfinite.report import github

        return github.render(findings)
    raise ValueError(f"there is no format {form!r}; choose one of {', '.join(FORMATS[1:])}")
