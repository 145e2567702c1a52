"""CFG017: a key that stands twice in one section."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import at, shown


class DuplicateKey(Rule[ConfigFile]):
    """A key stands twice in one section, and only one of the two counts.

    ## What it finds
    a key of YAML or JSON that appears twice in the same table. (TOML refuses it by itself.)

    ## Why it is bad
    Most readers silently take the last one. Whoever edits the first changes nothing.

    ## Example
    `lr: 1.0e-4` at the top of a section and `lr: 3.0e-4` at its end

    ## The fix
    Keep one.

    ## The popular fix that does not work
    Commenting: the other file has it too.

    ## References
    YAML 1.2, section 3.2.1.3 (keys are unique); PyYAML takes the last
    """

    code = "CFG017"
    name = "duplicate-key"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for entry in subject.duplicates:
            first = next((e for e in subject.entries if e.path == entry.path and e.line < entry.line), None)
            if first is None or first.file != entry.file:
                continue
            yield self.finding(
                f"{shown(entry)}: the key already stands at line {first.line} "
                f"({shown(first)}); only one counts",
                fix="keep one of them",
                evidence={"key": entry.name, "first": first.line},
                **at(entry),
            )
