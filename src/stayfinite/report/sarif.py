"""Findings as SARIF 2.1.0, which code hosts and editors show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import stayfinite
from stayfinite.findings import Finding, Json, Severity, dumps, find_rule, jsonable

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(findings: Sequence[Finding]) -> str:
    """One run with the rules that were hit and a result for each finding."""
    used = sorted({finding.code for finding in findings})
    driver: dict[str, Json] = {
        "name": "stayfinite",
        "version": stayfinite.__version__,
        "rules": [_rule(code) for code in used],
    }
    results: list[Json] = [_result(finding, used.index(finding.code)) for finding in findings]
    run: dict[str, Json] = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(code: str) -> Json:
    rule = find_rule(code)
    if rule is None:
        return {"id": code}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary()},
        "help": {"text": rule.page(), "markdown": rule.page()},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
    }


def _result(finding: Finding, index: int) -> Json:
    result: dict[str, Json] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVEL[finding.severity],
        "message": {"text": f"{finding.message}. What to do: {finding.fix}"},
        "properties": {"cause": finding.cause, "evidence": jsonable(finding.evidence)},
    }
    if finding.file is not None:
        place: dict[str, Json] = {"artifactLocation": {"uri": _uri(finding.file)}}
        if finding.line is not None:
            region: dict[str, Json] = {"startLine": max(finding.line, 1)}
            if finding.column is not None:
                region["startColumn"] = max(finding.column, 1)
            place["region"] = region
        result["locations"] = [{"physicalLocation": place}]
    return result


def _uri(file: str) -> str:
    if "://" in file:
        return file
    path = Path(file)
    return path.as_uri() if path.is_absolute() else path.as_posix()
