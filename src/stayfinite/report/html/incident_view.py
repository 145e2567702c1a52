"""One incident in the words and tables of the page. Reads incident.json as it is: a missing part is left out."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import Any

from stayfinite.findings import Json, find_rule
from stayfinite.report.html import charts, histogram
from stayfinite.report.html.source import Excerpt, excerpt
from stayfinite.report.html.words import bare_op, base_name, count, figure, shape
from stayfinite.report.incident import arrived
from stayfinite.report.record.folder import IncidentFile
from stayfinite.report.record.loose import items, mapping, number, objects, text, whole

_POPULAR = "The popular fix that does not work"
_ACTIONS = {
    "skip": "The step was skipped; weights, buffers and optimizer state are as they were before it.",
    "rollback": "The run went back to its last good copy.",
    "lower-lr": "The step was skipped and the learning rate lowered.",
    "stop": "The run was stopped.",
    "backoff": "The loss scale was lowered, as a scaler does.",
}
_BLAME = {
    "data": "The replay blames the data: the same weights do well on other batches.",
    "state": "The replay blames the state: other batches fail with these weights, too.",
    "both": "The replay blames data and state together.",
    "flaky": "The replay is not sure: the same step does not always fail.",
}
_ENDS = 3
_MOST = 24  # of anything that an incident lists; ours have fewer
_CODE = re.compile(r"[A-Z]{3}\d{3}")
_GAIN_WORTH_NAMING = 1.5


class IncidentView:
    """What the template asks for. Every property is safe on any JSON."""

    def __init__(self, file: IncidentFile, times: int = 1) -> None:
        self.file = file
        self.data = file.data
        self.number = file.number
        self.times = times
        self.step = file.step
        self.problem = file.problem
        self.birth = mapping(self.data, "birth")
        self.findings = [FindingView(finding) for finding in objects(self.data, "findings")[:_MOST]]
        self.group = f"i{self.number}"

    @property
    def what(self) -> str:
        """ "the loss is not finite" """
        return arrived(text(self.data, "trigger", "a step failed"), text(self.data, "phase"))

    @property
    def headline(self) -> str:
        """The one sentence: what happened, and where it began."""
        if self.problem:
            return f"Incident {self.number} cannot be shown"
        return f"Step {self.step}: {self.what}"

    @property
    def began(self) -> str:
        """Where it began, as prose."""
        if not self.birth:
            unknown = "Where the bad value was born is not known"
            return (
                f"{unknown}: a second run of the step did not fail." if self.not_repeated else f"{unknown}."
            )
        kinds = [
            f"{n:,} {name}" for key, name in (("nan", "NaN"), ("inf", "Inf")) if (n := whole(self.birth, key))
        ]
        made = " and ".join(kinds) or "the first bad value"
        call = text(self.birth, "call") or text(self.birth, "op") or "an operation"
        where = (
            f" on line {self.line} of `{_no_ticks(base_name(self.file_name))}`"
            if self.file_name and self.line
            else ""
        )
        return f"It began{where}, where `{_no_ticks(call)}` gave {made}."

    @property
    def not_repeated(self) -> bool:
        return self.data.get("reproduced") is False

    @property
    def file_name(self) -> str:
        return text(self.birth, "file")

    @property
    def line(self) -> int | None:
        return whole(self.birth, "line")

    @property
    def place(self) -> str:
        """train.py:63, in masked_loss, module head"""
        parts = [f"{self.file_name}:{self.line}"] if self.file_name and self.line else []
        function, module = text(self.birth, "function"), text(self.birth, "module")
        parts += [f"in {function}"] if function and function != "<module>" else []
        parts += [f"module {module}"] if module else []
        return ", ".join(parts)

    @property
    def source(self) -> Excerpt | None:
        return excerpt(self.file_name, self.line, text(self.birth, "source"))

    @property
    def facts(self) -> str:
        """What the operation gave, in numbers."""
        numel = whole(self.birth, "numel")
        if not numel:
            return ""
        index, samples = items(self.birth, "first_index"), items(self.birth, "samples")
        first = f", the first at [{', '.join(map(str, index[:8]))}]" if index else ""
        listed = ", ".join(str(sample) for sample in samples[:8]) + (" and more" if len(samples) > 8 else "")
        which = f"; samples of the batch: {listed}" if samples else ""
        nan, inf = whole(self.birth, "nan") or 0, whole(self.birth, "inf") or 0
        values = count(numel, f"{text(self.birth, 'dtype')} value")
        return f"{text(self.birth, 'op')} gave {nan:,} NaN and {inf:,} Inf in {values}{first}{which}."

    @property
    def action(self) -> str:
        """What was done, and how often the same was seen."""
        done = _ACTIONS.get(text(self.data, "action"), "")
        again = (
            f" The same failure was seen {count(self.times, 'time')} in this run." if self.times > 1 else ""
        )
        return done + again

    @property
    def blame(self) -> str:
        known = text(self.data, "blame")
        return _BLAME.get(known, "")

    @property
    def inputs(self) -> list[TensorRow]:
        return [TensorRow(tensor) for tensor in objects(self.birth, "inputs")[:_MOST]]

    @property
    def observed(self) -> list[TensorRow]:
        return [TensorRow(tensor) for tensor in objects(self.data, "observed")[:_MOST]]

    @property
    def path(self) -> list[PathNode]:
        """From the birth to the loss; after the birth, ops of one line and module are one node."""
        nodes: list[PathNode] = []
        for op in objects(self.data, "path")[: 20 * _MOST]:
            node = PathNode(op)
            if len(nodes) > 1 and nodes[-1].same_place(node):
                nodes[-1].ops.append(node.ops[0])
            else:
                nodes.append(node)
        return nodes

    @property
    def path_end(self) -> str:
        ends = {"loss": "the loss", "gradient": "a gradient", "spike": "a gradient", "parameter": "the state"}
        return ends.get(text(self.data, "trigger"), "the failure")

    @property
    def growth(self) -> list[GrowthRow]:
        rows = [GrowthRow(row) for row in objects(mapping(self.data, "growth"), "by_depth")[: 10 * _MOST]]
        heights = [row.height for row in rows if row.height is not None]
        lowest, highest = min(heights, default=0.0), max(heights, default=0.0)
        for row in rows:
            row.share = 1.0
            if row.height is not None and highest > lowest:
                row.share = 0.08 + 0.92 * (row.height - lowest) / (highest - lowest)
        return rows

    @property
    def charts(self) -> list[dict[str, Json]]:
        made = charts.history_charts(items(self.data, "history"), self.step, self.group)
        grown = charts.growth_chart(mapping(self.data, "growth"), self.group)
        return [*made, grown] if grown is not None else made

    @property
    def tried(self) -> list[TriedRow]:
        return [TriedRow(row) for row in objects(self.data, "tried")[:_MOST]]

    @property
    def proof(self) -> TriedRow | None:
        """What was proved: of the incident, or of its first finding."""
        own = mapping(self.data, "proof")
        return TriedRow(own) if own else (self.findings[0].proof if self.findings else None)

    @property
    def patch(self) -> str:
        return text(self.data, "patch") or (self.findings[0].patch if self.findings else "")

    @property
    def test(self) -> str:
        """A test that shows the failure, as text."""
        found = self.data.get("test")
        if isinstance(found, dict):
            return text(found, "source") or text(found, "code") or json.dumps(found, indent=2)
        return found if isinstance(found, str) else ""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """What to type, and what it does. They are meant for a shell, so nothing of the incident goes in unchecked."""
        known = [finding for finding in self.findings[:1] if _CODE.fullmatch(finding.code)]
        made = [(f"stayfinite explain {finding.code}", f"the page of {finding.code}") for finding in known]
        if self.file.has_capsule:
            made.insert(
                0, (f"stayfinite replay {shlex.quote(str(self.file.folder))}", "runs this one step again")
            )
        return made

    @property
    def environment(self) -> list[tuple[str, str]]:
        return facts_of(mapping(self.data, "environment"))


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
        gain, rms, largest = number(data, "gain"), number(data, "rms"), number(data, "max")
        self.gain, self.rms, self.max = figure(gain), figure(rms), figure(largest)
        self.amplifies = gain is not None and not gain < _GAIN_WORTH_NAMING
        size = largest if largest is not None else rms
        self.height = math.log10(size) if size is not None and 0 < size < math.inf else None
        self.bad = size is not None and not math.isfinite(size)
        self.share = 0.0


class TriedRow:
    """A remedy that was tried on the replayed step."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.remedy, self.verdict = text(data, "remedy", "?"), text(data, "verdict")
        finite = data.get("finite")
        self.finite = "yes" if finite is True else "no" if finite is False else "–"
        self.works = finite is True
        self.loss, self.distortion = figure(data.get("loss")), figure(data.get("distortion"))


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


def _no_ticks(value: str) -> str:
    return value.replace("`", "'")
