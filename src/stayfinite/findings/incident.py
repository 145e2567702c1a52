"""Incident: one failing step, as incident.json holds it. The keys are a contract: programs read them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stayfinite.findings.finding import Finding
from stayfinite.findings.jsonable import Json, as_float, fields_of, jsonable
from stayfinite.findings.trial import Tried

SCHEMA = 1

TRIGGERS = ("loss", "gradient", "parameter", "spike", "exception")
ACTIONS = ("skip", "rollback", "lower-lr", "stop", "none")


def listed_samples(samples: Sequence[object], most: int) -> str:
    """ "3, 17"; of more than `most`, the first ones "and more"."""
    return ", ".join(map(str, samples[:most])) + (" and more" if len(samples) > most else "")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of the finite values by magnitude: bins of equal width in log10 from `low` to `high`, each sign apart."""

    low: int
    high: int
    negative: tuple[int, ...] = ()
    positive: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "low": self.low,
            "high": self.high,
            "negative": list(self.negative),
            "positive": list(self.positive),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Histogram:
        return cls(data["low"], data["high"], tuple(data["negative"]), tuple(data["positive"]))


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """A tensor in a few numbers: its finite range, and how many zeros, NaN and Inf it holds."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    min: float | None = None
    max: float | None = None
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    histogram: Histogram | None = None

    def to_json(self) -> dict[str, Json]:
        """As `incident.json` has it; a tensor without a histogram has no such entry."""
        plain = fields_of(self)
        if self.histogram is None:
            del plain["histogram"]
        else:
            plain["histogram"] = self.histogram.to_json()
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSummary:
        made = {
            "min": as_float(data["min"]),
            "max": as_float(data["max"]),
            "shape": tuple(data["shape"]),
            "histogram": Histogram.from_json(data["histogram"]) if data.get("histogram") else None,
        }
        return cls(**{**data, **made})


@dataclass(frozen=True, slots=True)
class Birth:
    """The operation whose output is bad although its inputs do not explain it."""

    op: str
    call: str
    file: str | None
    line: int | None
    source: str | None
    function: str | None
    module: str | None
    kind: str
    nan: int
    inf: int
    numel: int
    first_index: tuple[int, ...]
    dtype: str
    samples: tuple[int, ...] = ()
    inputs: tuple[TensorSummary, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return fields_of(self) | {"inputs": [tensor.to_json() for tensor in self.inputs]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Birth:
        plain = {key: data[key] for key in cls.__slots__ if key not in ("first_index", "samples", "inputs")}
        return cls(
            **plain,
            first_index=tuple(data["first_index"]),
            samples=tuple(data["samples"]),
            inputs=tuple(TensorSummary.from_json(item) for item in data["inputs"]),
        )


@dataclass(frozen=True, slots=True)
class PathStep:
    """One operation on the way from the birth to the loss or the gradient."""

    op: str
    file: str | None
    line: int | None
    module: str | None

    def to_json(self) -> dict[str, Json]:
        return fields_of(self)


@dataclass(slots=True)
class Incident:
    """What happened at one step, where it began, why, and what was done about it."""

    step: int
    phase: str
    trigger: str
    reproduced: bool | None = None  # None: no replay came to the failing step
    rank: int | None = 0  # the first that saw it; None if averaged gradients do not tell
    world_size: int = 1
    birth: Birth | None = None
    path: list[PathStep] = field(default_factory=list)
    history: list[dict[str, Json]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    action: str = "none"
    environment: dict[str, Json] = field(default_factory=dict)
    observed: list[TensorSummary] = field(default_factory=list)  # what the user asked to keep an eye on
    whole_run: bool = False  # no step failed: it is what a finished run shows, and `step` is how many it made
    uncounted: bool = False  # by a run without an optimizer: `step` is 0
    growth: dict[str, Json] = field(default_factory=dict)  # by depth and by time, where the trace shows it
    not_located: str = ""  # why the place where it began is not known
    blame: str | None = None  # data, state, both, flaky; None: not examined
    tried: list[Tried] = field(default_factory=list)  # every remedy that was tried on the replay, best first
    patch: str | None = None  # a unified diff of a remedy that is proved
    patched_by: str | None = None  # that remedy, where it is not the first of those that are proved
    test: str | None = None  # a test that fails without the patch and passes with it
    standalone: str | None = None  # a script of a few lines that fails on its own
    blame_remark: str = ""  # why nobody is blamed, where that was asked
    proof_remark: str = ""  # what the reader of a proof must know

    def _repr_html_(self) -> str:
        """For notebooks."""
        notebook = importlib.import_module("stayfinite.report.html.notebook")  # reports stand above findings
        shown: str = notebook.incident_html(self.to_json())
        return shown

    def to_json(self) -> dict[str, Json]:
        return {
            "schema": SCHEMA,
            "step": self.step,
            "phase": self.phase,
            "trigger": self.trigger,
            "reproduced": self.reproduced,
            "blame": self.blame,
            "rank": self.rank,
            "world_size": self.world_size,
            "birth": self.birth.to_json() if self.birth else None,
            "path": [step.to_json() for step in self.path],
            "history": jsonable(self.history),
            "findings": [finding.to_json() for finding in self.findings],
            "action": self.action,
            "environment": jsonable(self.environment),
            "tried": [one.to_json() for one in self.tried],
            "patch": self.patch,
            "test": self.test,
            "standalone": self.standalone,
            **({"whole_run": True} if self.whole_run else {}),
            **({"uncounted": True} if self.uncounted else {}),
            **({"patched_by": self.patched_by} if self.patched_by else {}),
            **({"blame_remark": self.blame_remark} if self.blame_remark else {}),
            **({"proof_remark": self.proof_remark} if self.proof_remark else {}),
            **({"growth": jsonable(self.growth)} if self.growth else {}),
            **({"not_located": self.not_located} if self.not_located else {}),
            **({"observed": [tensor.to_json() for tensor in self.observed]} if self.observed else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Incident:
        if data.get("schema") != SCHEMA:
            raise ValueError(
                f"this incident has schema {data.get('schema')!r}; this version of stayfinite reads {SCHEMA}"
            )
        known = {key: data[key] for key in cls.__slots__ if key in data}
        made = {
            "birth": Birth.from_json(data["birth"]) if data["birth"] else None,
            "path": [PathStep(**step) for step in data["path"]],
            "findings": [Finding.from_json(item) for item in data["findings"]],
            "tried": [Tried.from_json(item) for item in data.get("tried", [])],
            "observed": [TensorSummary.from_json(item) for item in data.get("observed", [])],
        }
        return cls(**{**known, **made})
