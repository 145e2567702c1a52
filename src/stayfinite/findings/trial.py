"""Tried: one remedy and what came of it; ProofReport: all of them for one failure. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stayfinite.findings.jsonable import Json, as_float, fields_of

VERDICTS = ("proved", "failed", "no gradient", "distorts", "postpones", "unclear")


@dataclass(frozen=True, slots=True)
class Tried:
    """A remedy on the replay. `control`: it was not expected to help, and shows what helping is worth."""

    remedy: str
    sentence: str = ""
    verdict: str = "failed"  # one of VERDICTS
    reason: str = ""
    loss: float | None = None
    # how far healthy values moved, relative to their size; None: nothing to compare
    distortion: float | None = None
    # whether what failed still gets a gradient; None: it never could, or nobody asked
    gradient: bool | None = None
    steps: int = 0  # steps that were run with it after the failing one
    control: bool = False
    popular: bool = False
    seconds: float = 0.0

    @property
    def proved(self) -> bool:
        return self.verdict == "proved"

    @property
    def finite(self) -> bool:
        """The step was finite with it, whatever else is wrong with it."""
        return self.verdict != "failed"

    def to_json(self) -> dict[str, Json]:
        return {**fields_of(self), "finite": self.finite}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tried:
        known = {key: data[key] for key in cls.__slots__ if key in data}
        return cls(
            **{**known, "loss": as_float(data.get("loss")), "distortion": as_float(data.get("distortion"))}
        )


@dataclass(slots=True)
class ProofReport:
    """What trying gave for one failure, best first."""

    tried: list[Tried] = field(default_factory=list)
    blame: str | None = None  # data, state, both, flaky
    blame_remark: str = ""  # why nobody is blamed
    patch: str | None = None  # a unified diff of the proved remedy
    patched_by: str | None = None  # the remedy that the patch is
    file: str | None = None  # the file of the birth
    line: int | None = None  # of the birth
    standalone: str | None = None  # a script of a few lines that fails on its own
    test: str | None = None  # fails without the patch, passes with it
    remark: str = ""  # what the reader must know: a control that worked, a budget that ran out

    @property
    def proved(self) -> Tried | None:
        """The best remedy that works."""
        return next((one for one in self.tried if one.proved and not one.control), None)

    @property
    def worthless(self) -> bool:
        """What was not expected to help helped as well: the failure does not need the remedy to go away."""
        return any(one.proved and one.control for one in self.tried)

    def to_json(self) -> dict[str, Json]:
        return {**fields_of(self), "tried": [one.to_json() for one in self.tried]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProofReport:
        known = {key: data[key] for key in cls.__slots__ if key in data}
        return cls(**{**known, "tried": [Tried.from_json(one) for one in data["tried"]]})
