"""Finding: what every examination yields. Its JSON is a contract that other programs read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from stayfinite.findings.jsonable import Json, as_float, jsonable


class Severity(str, Enum):
    """How bad it is; `error` alone makes a command exit with 1."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Proof:
    """What happened when a remedy was tried on the replayed step."""

    remedy: str
    finite: bool
    loss: float | None = None
    distortion: float | None = None
    tried: int = 1

    def to_json(self) -> dict[str, Json]:
        return {
            "remedy": self.remedy,
            "finite": self.finite,
            "loss": jsonable(self.loss),
            "distortion": jsonable(self.distortion),
            "tried": self.tried,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Proof:
        return cls(
            data["remedy"],
            data["finite"],
            as_float(data["loss"]),
            as_float(data["distortion"]),
            data["tried"],
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: which rule, how bad, where, the evidence as numbers, why, and what to do."""

    code: str
    name: str
    cause: str
    severity: Severity
    message: str
    fix: str
    confidence: float = 1.0
    file: str | None = None
    line: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    patch: str | None = None
    proof: Proof | None = None
    column: int | None = None

    def to_json(self) -> dict[str, Json]:
        return {
            "code": self.code,
            "name": self.name,
            "cause": self.cause,
            "severity": self.severity.value,
            "confidence": self.confidence,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "evidence": jsonable(self.evidence),
            "fix": self.fix,
            "patch": self.patch,
            "proof": self.proof.to_json() if self.proof else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        return cls(
            code=data["code"],
            name=data["name"],
            cause=data["cause"],
            severity=Severity(data["severity"]),
            message=data["message"],
            fix=data["fix"],
            confidence=data["confidence"],
            file=data["file"],
            line=data["line"],
            evidence=data["evidence"],
            patch=data["patch"],
            proof=Proof.from_json(data["proof"]) if data["proof"] else None,
            column=data.get("column"),  # incidents of earlier versions have none
        )


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Errors before warnings before information; within one level the most certain first."""
    return sorted(findings, key=lambda f: (f.severity.rank, -f.confidence))
