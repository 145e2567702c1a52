"""A proof reaches its incident: the cause whose remedy works comes first, one whose own remedy fails is refuted."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from stayfinite.findings.finding import Finding, Proof, Severity
from stayfinite.findings.incident import Incident
from stayfinite.findings.trial import ProofReport, Tried

_OWN_REMEDIES: Final[dict[str, tuple[str, ...]]] = {
    "PURE_LOWP_OPTIMIZER": ("master-weights", "bfloat16", "float32")
}
"""Causes that stand for themselves and not for the birth, and what would cure them. A learning rate is not among them:
one that is a tenth of it and fails too says nothing of a millionth."""

_MADE_FOR: Final = {"scaler-step": "SCALER_MISUSE"}
"""Remedies that cure a mistake of the run, wherever its numbers went bad."""

_CONTRADICTED: Final[dict[str, frozenset[str]]] = {
    "state": frozenset(
        {"DATA_NONFINITE", "DATA_SCALE", "LABEL_INVALID", "BAD_BATCH_SPIKE", "PREPROC_ZERO_RANGE"}
    ),
    "data": frozenset({"STATE_POISONED", "LR_DIVERGENCE", "UNINITIALIZED_MEMORY"}),
}
"""What the replays have shown outranks a cause that says otherwise."""


def attach(incident: Incident, report: ProofReport) -> None:
    """Write what was tried into the incident, and order its findings by it."""
    incident.blame = report.blame or incident.blame
    incident.blame_remark = report.blame_remark if incident.blame is None else ""
    incident.tried, incident.patch, incident.proof_remark = report.tried, report.patch, report.remark
    best = report.proved
    differs = best is not None and best.remedy != report.patched_by
    incident.patched_by = report.patched_by if differs else None
    earlier = _made_earlier(incident, report)
    if earlier is not None and not report.remark:
        incident.proof_remark = earlier
    incident.test, incident.standalone = report.test or incident.test, report.standalone
    kept: list[Finding] = []
    refuted: list[Finding] = []
    cured = best is None
    for finding in incident.findings:
        own = _own(finding, report)
        if finding.cause in _CONTRADICTED.get(incident.blame or "", ()):
            # a spike has nothing but the batch to say
            if finding.cause != "BAD_BATCH_SPIKE" or len(incident.findings) == 1:
                refuted.append(_contradicted(finding, incident.blame or ""))
        elif own is not None and not any(one.proved for one in own):
            refuted.append(_refuted(finding, own, len(report.tried)))
        elif best is not None and not cured and _is_about(finding, report):
            kept.append(_proved(finding, best, report))
            cured = True
        else:
            kept.append(finding)
    if best is not None and not cured and kept:
        kept[0] = _proved(kept[0], best, report)
    # Only a refuted cause loses its place: what the rules rank above the birth may have led to it.
    incident.findings = [*kept, *refuted]


def _made_earlier(incident: Incident, report: ProofReport) -> str | None:
    """A batch that came in bad was made before its step: a run that begins earlier sees where."""
    birth, came_in = incident.birth, any(one.cause == "DATA_NONFINITE" for one in incident.findings[:1])
    if birth is None or birth.file is None or report.file is None or report.patched_by is None or not came_in:
        return None
    same = os.path.realpath(birth.file) == os.path.realpath(report.file)
    if report.line is None or (same and birth.line == report.line):
        return None
    where = f"line {report.line}" if same else f"{report.file}:{report.line}"
    return (
        f"on the replay of the whole run the bad value is made earlier, at {where}: that is what is changed"
    )


def _contradicted(finding: Finding, blame: str) -> Finding:
    return replace(
        finding,
        severity=Severity.WARNING if finding.severity is Severity.ERROR else finding.severity,
        message=f"{finding.message} (contradicted: on the replay the {blame} is to blame)",
        evidence={**finding.evidence, "contradicted": blame},
    )


def _own(finding: Finding, report: ProofReport) -> list[Tried] | None:
    names = _OWN_REMEDIES.get(finding.cause)
    tried = [one for one in report.tried if names is not None and one.remedy in names]
    return tried or None


def _is_about(finding: Finding, report: ProofReport) -> bool:
    cause = _MADE_FOR.get(report.proved.remedy) if report.proved is not None else None
    if cause is not None:
        return finding.cause == cause
    return finding.severity is Severity.ERROR and (finding.file, finding.line) == (report.file, report.line)


def _proved(finding: Finding, best: Tried, report: ProofReport) -> Finding:
    proof = Proof(best.remedy, True, best.loss, best.distortion, len(report.tried))
    return replace(finding, proof=proof, patch=finding.patch or report.patch)


def _refuted(finding: Finding, own: list[Tried], tried: int) -> Finding:
    names = " and ".join(one.remedy for one in own)
    return replace(
        finding,
        severity=Severity.WARNING if finding.severity is Severity.ERROR else finding.severity,
        message=f"{finding.message} (refuted: {names} did not help on the replay)",
        evidence={**finding.evidence, "refuted": names},
        proof=Proof(own[0].remedy, False, own[0].loss, own[0].distortion, tried),
    )
