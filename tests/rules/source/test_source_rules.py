"""Each source rule fires on the planted line of the bad script, and nothing fires on its good twin."""

from __future__ import annotations

import ast

import pytest

from rules.source.twins import HEAD, TWINS, Twin
from stayfinite.findings import Finding, all_rules, examine
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.readers.source import read_source

HEAD_LINES = HEAD.count("\n")


def findings(text: str) -> list[Finding]:
    ast.parse(text)  # a twin that is no Python would be silent for the wrong reason
    return examine(read_source(text, "script.py"))


@pytest.mark.parametrize("twin", TWINS, ids=[f"{twin.code}-{twin.what}" for twin in TWINS])
def test_the_fault_is_found_on_its_line(twin: Twin) -> None:
    found = [(finding.code, finding.line) for finding in findings(twin.bad)]
    assert (twin.code, twin.line + HEAD_LINES) in found
    assert len(set(found)) <= 2, "at most one other finding"


@pytest.mark.parametrize("twin", TWINS, ids=[f"{twin.code}-{twin.what}" for twin in TWINS])
def test_the_healthy_twin_is_silent(twin: Twin) -> None:
    assert [(finding.code, finding.line, finding.message) for finding in findings(twin.good)] == []


def test_every_source_rule_has_a_twin() -> None:
    codes = {rule.code for rule in all_rules() if rule.subject_type() is SourceFile}
    assert codes == {twin.code for twin in TWINS}
