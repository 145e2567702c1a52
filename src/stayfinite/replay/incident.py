"""From evidence to an Incident: findings ranked, lowered where the script handled it, the birth for the record."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import replace

from stayfinite.findings import Birth, Finding, Incident, Severity
from stayfinite.findings.jsonable import Json, fields_of
from stayfinite.findings.subjects.failed_step import FailedStep

_HISTORY_SHOWN = 64


def to_incident(
    step: FailedStep, findings: Sequence[Finding], machine: dict[str, Json], action: str = "none"
) -> Incident:
    """The incident of one failing step. Findings must be ordered, most likely first."""
    shown = [_as_information(f) for f in findings] if step.handled else list(findings)
    birth = step.birth.birth if step.birth is not None else _place_of(shown)
    return Incident(
        step=step.step,
        phase=step.phase,
        trigger=step.trigger,
        uncounted=step.step == 0 and not step.run.optimizers,
        whole_run=step.run.complete and not step.births and not step.state,
        reproduced=step.reproduced,
        birth=birth,
        path=list(step.path),
        history=[fields_of(record) for record in step.run.history[-_HISTORY_SHOWN:]],
        findings=shown,
        action=action,
        environment=machine,
        observed=list(step.observed),
        growth=step.growth.to_json() if step.growth is not None else {},
    )


def _as_information(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.INFO)


def _place_of(findings: Sequence[Finding]) -> Birth | None:
    """A failure without a bad value (a rate, an order of calls) is shown at the line its first finding names."""
    first = next((f for f in findings if f.file is not None and f.line is not None), None)
    if first is None or first.file is None or first.line is None:
        return None
    source = linecache.getline(first.file, first.line).strip() or None
    return Birth(
        op=first.name,
        call=first.name,
        file=first.file,
        line=first.line,
        source=source,
        function=None,
        module=None,
        kind="finite",
        nan=0,
        inf=0,
        numel=0,
        first_index=(),
        dtype="",
    )
