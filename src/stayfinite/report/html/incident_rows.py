"""The rows and tables of an incident: findings, tensors, path, growth, remedies, from JSON of any shape."""

from __future__ import annotations

import json
import math
from typing import Any

from stayfinite.findings import find_rule
from stayfinite.report.html import histogram
from stayfinite.report.html.words import bare_op, base_name, figure, shape
from stayfinite.report.record.loose import mapping, number, text, whole

_POPULAR = "The popular fix that does not work"
_ENDS = 3
_GAIN_WORTH_NAMING = 1.5


class FindingView:
    """A finding: what it says, what to do, what not to do, and the numbers behind it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.code, self.name = text(data, "code"), text(data, "name")
        self.severity = text(data, "severity", "error")
        self.message, self.fix, self.patch = text(data, "message"), text(data, "fix"), text(data, "patch")
        self.evidence = facts_of(mapping(data, "evidence"))
        proof = mapping(data, "proof")
        self.proof = TriedRow(proof) if proof else None

    @property
    def popular(self) -> str:
        """The popular fix that does not work, from the rule's own page."""
        rule = find_rule(self.code) if self.code else None
        found = rule.section(_POPULAR) if rule is not None else None
        return " ".join(found.split()) if found else ""


class TensorRow:
    """A tensor in numbers."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.name, self.dtype, self.shape = text(data, "name"), text(data, "dtype"), shape(data.get("shape"))
        self.low, self.high = figure(data.get("min")), figure(data.get("max"))
        self.zeros, self.nan, self.inf = (whole(data, key) or 0 for key in ("zeros", "nan", "inf"))
        self.bars = histogram.bars(mapping(data, "histogram"), self.zeros)
        self.ticks = histogram.ticks(mapping(data, "histogram"), self.bars)


class PathNode:
    """One line of source on the way, with the ops that ran there."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.file, self.line, self.module = text(data, "file"), whole(data, "line"), text(data, "module")
        self.ops = [bare_op(text(data, "op", "?"))]

    def same_place(self, other: PathNode) -> bool:
        return (self.file, self.line, self.module) == (other.file, other.line, other.module)

    @property
    def place(self) -> str:
        return f"{base_name(self.file)}:{self.line}" if self.file and self.line else ""

    @property
    def label(self) -> str:
        shown = self.ops if len(self.ops) <= 2 * _ENDS else [*self.ops[:_ENDS], "...", *self.ops[-_ENDS:]]
        return " → ".join(shown)


class GrowthRow:
    """A module on the way down: how large its output is, and by how much it amplifies."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.module = text(data, "module", "?")
        gain, largest = number(data, "gain"), number(data, "max")
        self.gain, self.max = figure(gain), figure(largest)
        self.amplifies = gain is not None and not gain < _GAIN_WORTH_NAMING
        self.height = math.log10(largest) if largest is not None and 0 < largest < math.inf else None
        self.bad = largest is not None and not math.isfinite(largest)
        self.share = 0.0


class TriedRow:
    """A remedy that was tried on the replayed step."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.remedy, self.verdict = text(data, "remedy", "?"), text(data, "verdict")
        self.sentence, self.reason = text(data, "sentence"), text(data, "reason")
        self.steps, self.control = whole(data, "steps") or 0, data.get("control") is True
        self.finite = data.get("finite") is True
        self.works = self.finite and (not self.verdict or self.verdict.lower().startswith("proved"))
        self.loss, self.distortion = figure(data.get("loss")), figure(data.get("distortion"))

    @property
    def seen(self) -> str:
        """What came of it: why it is no remedy, or for how long it went well."""
        if self.reason:
            return self.reason
        if not self.finite:
            return "the step is still not finite"
        further = ", and so is the next" if self.steps == 1 else f", and so are the next {self.steps}"
        further = further if self.steps else ""
        loss = f"; loss {self.loss}" if self.loss != "–" else ""
        changed = {"–": "", "0": "; other values unchanged"}.get(
            self.distortion, f"; other values changed by {self.distortion} of their size"
        )
        return f"the step is finite with it{further}{loss}{changed}"


def facts_of(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Keys and values for a table."""
    return [(str(key), _plain(value)) for key, value in list(data.items())[:60]]


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, (dict, list)):
        dumped = json.dumps(value, ensure_ascii=False)
        return dumped if len(dumped) <= 400 else dumped[:400] + " ..."
    return str(value)
