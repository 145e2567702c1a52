"""What a fire drill gives: each injected fault, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Answer = Literal["yes", "no", "unknown", "not applicable"]

FAULTS = {
    "nan batch": "a NaN in the batch",
    "inf gradient": "an Inf in a gradient",
    "bad update": "an update with a learning rate of Inf",
    "kill while saving": "killed in the middle of writing a checkpoint",
}


@dataclass(frozen=True, slots=True)
class DrilledFault:
    """One fault: whether it was caught (and by whom), undone bit for bit, and survived."""

    fault: str  # a key of FAULTS
    injected: str  # where, or why not
    caught: Answer
    undone: Answer
    survived: Answer
    caught_by: str = ""  # "stayfinite", "GradScaler", "the script"
    compared: dict[str, bool] = field(default_factory=dict)  # parameters, buffers...: the same bits as before
    details: tuple[str, ...] = ()  # sentences

    @property
    def passed(self) -> bool:
        """Survived, or there was nothing to survive."""
        return self.survived in ("yes", "not applicable")

    def to_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "injected": self.injected,
            "caught": self.caught,
            "caught_by": self.caught_by,
            "undone": self.undone,
            "survived": self.survived,
            "compared": self.compared,
            "details": list(self.details),
        }


@dataclass(frozen=True, slots=True)
class DrillReport:
    """All faults of one script."""

    target: str
    step: int
    faults: tuple[DrilledFault, ...]
    script: str = ""  # optimizer, scaler, precision: what the script was seen to train with

    @property
    def passed(self) -> bool:
        return all(fault.passed for fault in self.faults)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "drill": {
                "target": self.target,
                "step": self.step,
                "script": self.script,
                "passed": self.passed,
                "faults": [fault.to_json() for fault in self.faults],
            },
        }
