"""What every configuration format is read into: entries with places; and the limits on hostile files."""

from __future__ import annotations

from dataclasses import dataclass, field

from stayfinite.findings.subjects.config_file import Entry

DEEPEST = 100
MOST_ENTRIES = 20_000


class UnreadableConfig(Exception):
    """The file cannot be read as a configuration; the message says why."""


@dataclass(slots=True)
class Collected:
    """The entries of one file in order, and keys that appear twice in one table."""

    file: str
    entries: list[Entry] = field(default_factory=list)
    duplicates: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        if len(self.entries) >= MOST_ENTRIES:
            raise UnreadableConfig(f"{self.file}: more than {MOST_ENTRIES} keys is data, not a configuration")
        self.entries.append(entry)
