"""One conformance test over all rules: a complete page, a well-formed code, a unique name, a known cause."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from stayfinite.findings import CAUSES, FAMILIES, Rule, all_rules
from stayfinite.findings.rule import rules_for

HEADINGS = [
    "What it finds",
    "Why it is bad",
    "Example",
    "The fix",
    "The popular fix that does not work",
    "References",
]
RULES = all_rules()


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_a_rule_is_complete(rule: Rule[Any]) -> None:
    assert re.fullmatch(r"[A-Z]{3}\d{3}", rule.code)
    assert rule.code[:3] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert rule.cause in CAUSES
    assert re.findall(r"^## (.+)$", rule.page(), flags=re.MULTILINE) == HEADINGS
    assert rule.summary().endswith(".")
    for heading in HEADINGS:
        assert rule.section(heading), heading
    assert rule.subject_type() is not object


def test_names_and_files_are_unique() -> None:
    names = Counter(rule.name for rule in RULES)
    assert [name for name, count in names.items() if count > 1] == []
    modules = Counter(type(rule).__module__ for rule in RULES)
    assert [module for module, count in modules.items() if count > 1] == []


def test_every_cause_that_a_run_can_show_has_a_rule() -> None:
    covered = {rule.cause for rule in RULES}
    assert set(CAUSES) - covered <= {"LIB_REGRESSION"}


def test_rules_for_a_subject_are_all_of_its_rules_and_the_others_are_not_imported() -> None:
    for subject in {rule.subject_type() for rule in RULES}:
        assert rules_for(subject) == tuple(rule for rule in RULES if rule.subject_type() is subject)
    code = (
        "import sys; from stayfinite.findings.rule import rules_for; "
        "from stayfinite.findings.subjects.environment import Environment; rules_for(Environment); "
        "print(*{name.split('.')[2] for name in sys.modules if name.startswith('stayfinite.rules.')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["environment"]
