"""Findings as JSON: {"schema": 1, "findings": [...]}. The keys are a contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stayfinite.findings import Finding, dumps

SCHEMA = 1


def render(findings: Sequence[Finding], more: Mapping[str, Any] | None = None) -> str:
    """Valid JSON whatever the evidence holds; `more` adds keys beside the findings."""
    return dumps({"schema": SCHEMA, "findings": [f.to_json() for f in findings], **(more or {})}, indent=2)
