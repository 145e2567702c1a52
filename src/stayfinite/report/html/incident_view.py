"""One incident in the words and tables of the page. Reads incident.json as it is: a missing part is left out."""

from __future__ import annotations

import json
import re
import shlex

from stayfinite.findings import Json
from stayfinite.findings.incident import listed_samples
from stayfinite.report.html import charts
from stayfinite.report.html.incident_rows import (
    FindingView,
    GrowthRow,
    PathNode,
    TensorRow,
    TriedRow,
    facts_of,
)
from stayfinite.report.html.source import Excerpt, excerpt
from stayfinite.report.html.words import base_name, count
from stayfinite.report.incident import arrived
from stayfinite.report.record.folder import IncidentFile
from stayfinite.report.record.loose import items, mapping, objects, text, whole

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
_FEW = 8  # tensors that are looked at without unfolding
_MOST = 24  # of anything that an incident lists; ours have fewer
_CODE = re.compile(r"[A-Z]{3}\d{3}")


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
        self.growth_group = f"{self.group}-growth"  # with steps of its own: it looks further back

    @property
    def what(self) -> str:
        """ "the loss is not finite" """
        codes = [finding.code for finding in self.findings]
        born = bool(self.data.get("birth"))
        return arrived(
            text(self.data, "trigger", "a step failed"), text(self.data, "phase"), codes, born=born
        )

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
            if why := text(self.data, "not_located"):
                return f"{unknown}: {why.rstrip('.')}."
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
        gave = "was given" if self._came_in else "gave"
        return f"It began{where}, where `{_no_ticks(call)}` {gave} {made}."

    @property
    def again(self) -> str:
        """Whether a second run of the step failed, too."""
        known = {
            True: "The step was run a second time and failed again.",
            False: "A second run of the step did not fail.",
        }
        reproduced = self.data.get("reproduced")
        return known[reproduced] if isinstance(reproduced, bool) else ""

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
        listed = listed_samples(samples, 8)
        which = f"; samples of the batch: {listed}" if samples else ""
        nan, inf = whole(self.birth, "nan") or 0, whole(self.birth, "inf") or 0
        values = count(numel, f"{text(self.birth, 'dtype')} value")
        maker = "What came in there holds" if self._came_in else f"{text(self.birth, 'op')} gave"
        return f"{maker} {nan:,} NaN and {inf:,} Inf in {values}{first}{which}."

    @property
    def _came_in(self) -> bool:
        """No op was seen to make it: only one that was given it."""
        return text(self.birth, "op") == "outside"

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
        return [TensorRow(tensor) for tensor in objects(self.data, "observed")[: 10 * _MOST]]

    @property
    def observed_first(self) -> list[TensorRow]:
        """All of a few; of many the first that is bad, and those right before it."""
        rows = self.observed
        bad = next((i for i, row in enumerate(rows) if row.nan or row.inf), len(rows) - 1)
        return rows if len(rows) <= _FEW else rows[max(0, bad - _FEW + 1) : bad + 1]

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
        history = items(self.data, "history")
        made = charts.history_charts(history, self.step, self.group) if len(history) > 1 else []
        grown = charts.growth_chart(mapping(self.data, "growth"), self.growth_group)
        return [*made, grown] if grown is not None else made

    @property
    def tried(self) -> list[TriedRow]:
        return [TriedRow(row) for row in objects(self.data, "tried")[:_MOST]]

    @property
    def proof(self) -> TriedRow | None:
        """What was proved: of the incident, or of its first finding; with its own words where it is among the tried."""
        own = mapping(self.data, "proof")
        proof = TriedRow(own) if own else (self.findings[0].proof if self.findings else None)
        known = (row for row in self.tried if proof is not None and row.remedy == proof.remedy and row.works)
        return next(known, proof)

    @property
    def patch(self) -> str:
        return text(self.data, "patch") or (self.findings[0].patch if self.findings else "")

    @property
    def patched_by(self) -> str:
        """Whose patch it is, where that is not the remedy that is named as proved."""
        return text(self.data, "patched_by")

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
        if self.file.has_capsule:
            made = [(f"stayfinite replay {shlex.quote(str(self.file.folder))}", "run this one step again")]
        else:
            made = [("stayfinite run SCRIPT.py", "run your script again under guard, and locate what fails")]
        known = [finding.code for finding in self.findings[:1] if _CODE.fullmatch(finding.code)]
        made += [(f"stayfinite explain {code}", f"read the page of {code}") for code in known]
        return made

    @property
    def environment(self) -> list[tuple[str, str]]:
        return facts_of(mapping(self.data, "environment"))


def _no_ticks(value: str) -> str:
    return value.replace("`", "'")
