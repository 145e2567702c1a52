"""Finding: what every examination yields. Its JSON is a contract that other programs read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from stayfinite.findings.jsonable import Json, as_float, fields_of, jsonable


class Severity(str, Enum):
    """How bad it is; `error` alone makes a command exit with 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


class Depth:
    """Where in the chain of causes a finding belongs. Births themselves count 1, 2, 3 in the order of cause."""

    FIRST = -1  # before anything else: a learning rate that is absurd by itself, and an update that shows it
    UPSTREAM = 0  # came before the birth and led to it: a learning rate, a data range, a misused scaler
    BIRTH = 1
    RUN = 50  # a mistake of the run that may have nothing to do with the birth
    CONSEQUENCE = 100  # followed from the birth: a check that did not see it, state that kept it


@dataclass(frozen=True, slots=True)
class Proof:
    """What happened when a remedy was tried on the replayed step."""

    remedy: str
    finite: bool
    loss: float | None = None
    distortion: float | None = None
    tried: int = 1

    def to_json(self) -> dict[str, Json]:
        return fields_of(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Proof:
        return cls(**{**data, "loss": as_float(data["loss"]), "distortion": as_float(data["distortion"])})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: which rule, how bad, where, the evidence as numbers, why, and what to do."""

    code: str
    name: str
    cause: str
    severity: Severity
    message: str
    fix: str
    file: str | None = None
    line: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    patch: str | None = None
    proof: Proof | None = None
    column: int | None = None
    # what not to do here, where the evidence tells more than the page of the rule; written only if there is one
    avoid: str | None = None
    depth: int = 0  # how late in the chain of causes, see `Depth`; orders findings, and is not written

    def to_json(self) -> dict[str, Json]:
        return {
            "code": self.code,
            "name": self.name,
            "cause": self.cause,
            "severity": self.severity.value,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "evidence": jsonable(self.evidence),
            "fix": self.fix,
            "patch": self.patch,
            "proof": self.proof.to_json() if self.proof else None,
            **({"avoid": self.avoid} if self.avoid else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        known = {key: data[key] for key in cls.__slots__ if key in data}  # older files say more
        proof = Proof.from_json(data["proof"]) if data["proof"] else None
        return cls(**{**known, "severity": Severity(data["severity"]), "proof": proof})


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Errors before warnings before information; within one level what came first in the chain of causes."""
    return sorted(findings, key=lambda f: (f.severity.rank, f.depth))
