"""ProjectView: a project as its prevention list asks about it: events, settings, and places in sources."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stayfinite.doctor.examine import Examination
from stayfinite.findings import Finding, Severity
from stayfinite.findings.subjects.log import Log
from stayfinite.findings.subjects.project import Project
from stayfinite.findings.subjects.source_file import Event, SourceFile


@dataclass(slots=True)
class ProjectView:
    """What the items of the prevention list are checked against."""

    found: Examination
    project: Project
    findings: Sequence[Finding]
    lines: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    @property
    def sources(self) -> list[SourceFile]:
        return self.found.lint.read

    @property
    def logs(self) -> list[Log]:
        return [verdict.log for verdict in self.found.logs]

    def of(self, codes: Iterable[str]) -> list[Finding]:
        wanted = tuple(codes)
        return [f for f in self.findings if f.code in wanted and f.severity is not Severity.INFO]

    def events(self, what: str) -> list[tuple[SourceFile, Event]]:
        return [
            (source, event)
            for source in self.sources
            for facts in source.functions
            for event in facts.events
            if event.what == what
        ]

    def setting(self, *words: str) -> list[str]:
        return [
            f"{entry.file}:{entry.line}"
            for config in self.found.lint.configs
            for entry in config.find(*words)
        ]

    def places(self, pattern: str) -> list[str]:
        """Where the sources say something."""
        found = []
        for source in self.sources:
            for number, line in self.code(source):
                if re.search(pattern, line):
                    found.append(f"{source.path}:{number}")
                    break
        return found

    def code(self, source: SourceFile) -> list[tuple[int, str]]:
        """Its lines with their numbers, without comments and docstrings."""
        known = self.lines.get(source.path)
        if known is None:
            silent = docstring_lines(source.text)
            known = [
                (number, line)
                for number, line in enumerate(source.text.splitlines(), 1)
                if number not in silent and not line.lstrip().startswith("#")
            ]
            self.lines[source.path] = known
        return known

    def values(self, pattern: str) -> list[str]:
        """Where configurations give a text that fits."""
        return [
            f"{entry.file}:{entry.line}"
            for config in self.found.lint.configs
            for entry in config.entries
            if isinstance(entry.value, str) and re.search(pattern, entry.value)
        ]


def docstring_lines(text: str) -> frozenset[int]:
    """The lines of texts that stand by themselves: what they mention does not happen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    return frozenset(
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )
