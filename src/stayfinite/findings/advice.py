"""What a person is told to do: the steps of a plan, and the items of a list that were checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from stayfinite.findings.jsonable import Json


class Status(str, Enum):
    """What came out of checking one item."""

    DONE = "done"
    MISSING = "missing"
    NOT_APPLICABLE = "not applicable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckedItem:
    """One item of a list, checked: what, how it stands, why, and where to look."""

    title: str
    status: Status
    detail: str
    where: tuple[str, ...] = ()
    blocking: bool = True
    """Whether a missing item speaks against going on."""

    def to_json(self) -> dict[str, Json]:
        return {
            "title": self.title,
            "status": self.status.value,
            "detail": self.detail,
            "where": list(self.where),
            "blocking": self.blocking,
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting, old and new."""

    name: str
    old: str
    new: str
    place: str
    why: str


@dataclass(slots=True)
class PlanStep:
    """One thing to do, with why, the settings it changes and the commands to paste."""

    title: str
    why: str = ""
    settings: list[Setting] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        return {
            "title": self.title,
            "why": self.why,
            "settings": [
                {"name": s.name, "old": s.old, "new": s.new, "place": s.place, "why": s.why}
                for s in self.settings
            ],
            "commands": list(self.commands),
        }
