"""Rules are found by walking the package, each under its own code, and each is a whole page."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import stayfinite.rules
from stayfinite.findings import (
    CAUSES,
    FAMILIES,
    Depth,
    Finding,
    Rule,
    Severity,
    all_rules,
    examine,
    find_rule,
)
from stayfinite.findings.subjects.setup import Group, HeldTensor, OptimizerSetup, Setup

SECTIONS = [
    "What it finds",
    "Why it is bad",
    "Example",
    "The fix",
    "The popular fix that does not work",
    "References",
]
GUARD_CODES = [f"STA{n:03d}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12)] + ["DAT001", "RUN001"]


def test_every_file_that_names_a_code_is_found() -> None:
    root = Path(stayfinite.rules.__path__[0])
    written = [
        code
        for path in root.rglob("*.py")
        for code in re.findall(
            r'^    code = "([A-Z]{3}\d{3})"', path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert sorted(written) == [rule.code for rule in all_rules()]
    assert set(GUARD_CODES) <= set(written)


def test_codes_and_names_are_unique_and_well_formed() -> None:
    rules = all_rules()
    assert len({rule.code for rule in rules}) == len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        assert re.fullmatch(r"[A-Z]{3}\d{3}", rule.code) and rule.code[:3] in FAMILIES, rule.code
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name), rule.code
        assert rule.cause in CAUSES and isinstance(rule.severity, Severity), rule.code


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_rule_has_a_whole_page(rule: Rule[object]) -> None:
    page = rule.page()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == SECTIONS
    assert all(rule.section(title) for title in SECTIONS)
    assert rule.summary().endswith(".") and "\n" not in rule.summary()
    source = inspect.getsource(inspect.getmodule(rule) or rule.__class__)
    assert source.startswith(f'"""{rule.code}: '), "the file opens with its code and what it is for"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_a_rule_says_what_it_examines(rule: Rule[object]) -> None:
    assert rule.subject_type().__module__.startswith("stayfinite.findings.subjects.")


def test_rules_are_found_by_code_in_any_case_and_by_name() -> None:
    for text in ("STA003", "sta003", " Sta003 ", "eps-zero-in-dtype"):
        rule = find_rule(text)
        assert rule is not None and rule.code == "STA003"
    assert find_rule("STA999") is None
    assert find_rule("") is None


def test_a_subject_meets_only_the_rules_written_for_it() -> None:
    half = OptimizerSetup("Adam", True, False, (Group(0, 1e-3, 1e-8, ("float16",)),))
    setup = Setup(optimizers=(half,), unheld=("head.weight",))
    assert {finding.code for finding in examine(setup)} == {"STA003", "STA004", "STA005"}
    assert [finding.code for finding in examine(setup, only=["STA005"])] == ["STA005"]
    assert examine(Setup()) == []
    assert examine("a string is no subject") == []


def test_a_rule_that_does_not_say_its_subject_is_a_clear_error() -> None:
    class Nameless(Rule):  # type: ignore[type-arg]
        """Says nothing."""

        code, name, cause, severity = "STA998", "nameless", "LOG_DOMAIN", Severity.INFO

        def check(self, subject: object) -> Iterator[Finding]:
            yield self.finding("never", fix="never", evidence={})

    with pytest.raises(TypeError, match="Nameless must say what it examines"):
        Nameless.subject_type()


def test_a_finding_takes_the_rules_own_words_unless_told_otherwise() -> None:
    @dataclass(frozen=True)
    class Thing:
        size: int

    class TooBig(Rule[Thing]):
        """The thing is too big."""

        code, name, cause, severity = "STA997", "too-big", "DATA_SCALE", Severity.WARNING

        def check(self, subject: Thing) -> Iterator[Finding]:
            yield self.finding("big", fix="shrink it", evidence={"size": subject.size})
            yield self.finding(
                "big",
                fix="shrink it",
                evidence={},
                severity=Severity.INFO,
                cause="LABEL_INVALID",
                depth=7,
            )

    assert TooBig.subject_type() is Thing
    plain, changed = TooBig().check(Thing(3))
    assert (plain.code, plain.name, plain.cause, plain.severity, plain.depth) == (
        "STA997", "too-big", "DATA_SCALE", Severity.WARNING, Depth.RUN,
    )  # fmt: skip
    assert (changed.severity, changed.cause, changed.depth) == (Severity.INFO, "LABEL_INVALID", 7)


def test_a_held_tensor_is_described_by_its_own_numbers() -> None:
    from stayfinite.findings import TensorSummary

    bad = HeldTensor("parameter", TensorSummary("w", (2,), "float32", 0.0, 1.0, nan=1))
    (found,) = [f for f in examine(Setup(tensors=(bad,))) if f.code == "STA001"]
    assert "parameter w" in found.message and found.evidence["nan"] == 1
