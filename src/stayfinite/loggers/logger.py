"""Logger: what every tool is given of a run, under names that do not change."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from stayfinite.findings import Json

PREFIX = "stayfinite/"


class Logger(ABC):
    """Opened with the first line, so that ranks without one open nothing. Subclasses write numbers and events."""

    def __call__(self, line: Mapping[str, Json]) -> None:
        """A step."""
        step = line.get("step")
        if isinstance(step, int):
            self.numbers(step, scalars(line))

    def event(self, line: Mapping[str, Json]) -> None:
        """Something that happened between steps: an incident, a rollback, a warning, the end."""
        step, kind = line.get("step"), str(line.get("event"))
        said = line.get("what")
        if isinstance(step, int) and (said is not None or kind == "incident"):
            text = (
                str(said)
                if said is not None
                else f"incident {line.get('incident')}, seen {line.get('times')} times"
            )
            self.happened(step, kind, text)

    @abstractmethod
    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step, by name."""

    @abstractmethod
    def happened(self, step: int, kind: str, text: str) -> None:
        """What happened at a step, and what the run said of it."""

    @abstractmethod
    def close(self) -> None:
        """The run is over."""


def scalars(line: Mapping[str, Json]) -> dict[str, float]:
    """The numbers of a step by name. One that is not finite is left out and marked: its name below nonfinite/ is 1.

    Tools draw NaN as a gap or refuse it, and an average over it is lost; a mark is seen and can be counted.
    """
    found: dict[str, float] = {}
    for name, value in line.items():
        if name in ("step", "what"):
            continue
        if name == "action":
            found[f"{PREFIX}applied"] = float(value == "none")
        elif isinstance(value, Mapping):
            for part, number in value.items():
                _add(found, f"{name}/{part}", number)
        elif isinstance(value, list):
            for index, number in enumerate(value):
                _add(found, f"{name}/{index}", number)
        else:
            _add(found, name, value)
    return found


def _add(found: dict[str, float], name: str, value: Json) -> None:
    if value in ("nan", "inf", "-inf"):
        found[f"{PREFIX}nonfinite/{name}"] = 1.0
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        found[f"{PREFIX}{name}"] = float(value)
