"""Rule: one file, one code. Found by walking the package `stayfinite.rules`; nothing is registered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args

from stayfinite.findings.causes import CAUSES
from stayfinite.findings.finding import Depth, Finding, Proof, Severity
from stayfinite.findings.subjects.run_record import Place

Subject = TypeVar("Subject")

FAMILIES = {
    "NUM": "numerics of a step",
    "STA": "state: optimizer, buffers, averages, scaler, scheduler",
    "CKP": "checkpoints",
    "CFG": "configuration",
    "SRC": "source",
    "DAT": "data",
    "LOG": "logs",
    "DST": "distributed",
    "RUN": "the run as a whole",
    "ENV": "the machine and its software",
    "PRB": "a model before its training",
    "PRJ": "a project: what its configuration, source, logs and checkpoints say together",
}


class Rule(ABC, Generic[Subject]):
    """Subclass it as `class MyRule(Rule[SomeSubject])`; the docstring is the rule's page."""

    code: ClassVar[str]
    name: ClassVar[str]
    cause: ClassVar[str]
    severity: ClassVar[Severity]
    more_specific_than: ClassVar[tuple[str, ...]] = ()  # codes that it goes before, all else being equal

    @abstractmethod
    def check(self, subject: Subject) -> Iterator[Finding]:
        """Yield a finding for each place where the evidence shows the bad pattern."""

    def finding(
        self,
        message: str,
        *,
        fix: str,
        evidence: Mapping[str, Any],
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
        place: Place | None = None,
        depth: int = Depth.RUN,
        severity: Severity | None = None,
        cause: str | None = None,
        proof: Proof | None = None,
        avoid: str | None = None,
    ) -> Finding:
        """A finding of this rule."""
        return Finding(
            code=self.code,
            name=self.name,
            cause=cause or self.cause,
            severity=severity or self.severity,
            message=message,
            fix=fix,
            file=place.file if place is not None else file,
            line=place.line if place is not None else line,
            column=column,
            depth=depth,
            evidence=evidence,
            proof=proof,
            avoid=avoid,
        )

    @classmethod
    def page(cls) -> str:
        """The rule's own documentation."""
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def summary(cls) -> str:
        """The first sentence of the page."""
        return cls.page().split("\n\n", 1)[0].replace("\n", " ")

    @classmethod
    def section(cls, title: str) -> str | None:
        """The text under one heading of the page, for example "The popular fix that does not work"."""
        _, found, rest = cls.page().partition(f"## {title}\n")
        return rest.partition("\n## ")[0].strip() if found else None

    @classmethod
    def subject_type(cls) -> type:
        """What kind of thing the rule examines, read from `Rule[...]`."""
        for base in getattr(cls, "__orig_bases__", ()):
            arguments = get_args(base)
            if arguments and isinstance(arguments[0], type):
                return arguments[0]
        raise TypeError(f"{cls.__name__} must say what it examines: class {cls.__name__}(Rule[SomeSubject])")


@cache
def all_rules() -> tuple[Rule[Any], ...]:
    """Every rule of the package, ordered by code."""
    return _by_code(rule for name, _ in _modules() for rule in _rules_in(name))


@cache
def rules_for(subject: type) -> tuple[Rule[Any], ...]:
    """The rules that examine this kind of subject, ordered by code.

    A file that does not name the subject is not imported: 200 modules would cost a healthy run half a second.
    """
    named = [f"Rule[{kind.__name__}]" for kind in subject.__mro__]
    texts = ((name, path.read_text(encoding="utf-8") if path else None) for name, path in _modules())
    wanted = (name for name, text in texts if text is None or any(word in text for word in named))
    return _by_code(
        rule for name in wanted for rule in _rules_in(name) if issubclass(subject, rule.subject_type())
    )


@cache
def _modules() -> tuple[tuple[str, Path | None], ...]:
    """Every module below `rules`, with its source where there is one."""
    found: list[tuple[str, Path | None]] = []
    folders = [
        ("stayfinite.rules", Path(folder)) for folder in importlib.import_module("stayfinite.rules").__path__
    ]
    for package, folder in folders:
        for info in pkgutil.iter_modules([str(folder)]):
            name, path = f"{package}.{info.name}", folder / f"{info.name}.py"
            if info.ispkg:
                folders.append((name, folder / info.name))
            else:
                found.append((name, path if path.is_file() else None))
    return tuple(found)


@cache
def _rules_in(name: str) -> tuple[Rule[Any], ...]:
    """The rules that a module defines."""
    module = importlib.import_module(name)
    return tuple(
        member()
        for member in vars(module).values()
        if inspect.isclass(member)
        and issubclass(member, Rule)
        and member.__module__ == name
        and not inspect.isabstract(member)
    )


def _by_code(rules: Iterable[Rule[Any]]) -> tuple[Rule[Any], ...]:
    found: dict[str, Rule[Any]] = {}
    for rule in rules:
        if rule.code in found:
            raise RuntimeError(f"two rules have the code {rule.code}: {found[rule.code]} and {rule}")
        if rule.cause not in CAUSES:
            raise RuntimeError(f"rule {rule.code} names an unknown cause: {rule.cause}")
        found[rule.code] = rule
    return tuple(found[code] for code in sorted(found))


def find_rule(code_or_name: str) -> Rule[Any] | None:
    """The rule with this code ("STA001", any case) or name ("eps-zero-in-dtype")."""
    wanted = code_or_name.strip().lower()
    return next((rule for rule in all_rules() if wanted in (rule.code.lower(), rule.name)), None)


def examine(subject: object, only: Collection[str] | None = None) -> list[Finding]:
    """Run every rule written for this kind of subject (or only those with the given codes)."""
    findings: list[Finding] = []
    kind: type = type(subject)
    for rule in rules_for(kind):
        if only is None or rule.code in only:
            findings.extend(rule.check(subject))
    return findings
