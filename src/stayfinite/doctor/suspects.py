"""Which finding to look at first: what fits the way the run failed, before what merely could."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stayfinite.findings import Finding, Severity
from stayfinite.findings.subjects.log import Log, Role
from stayfinite.findings.subjects.project import FailureWindow, ProjectRun

_SYMPTOMS = (
    "LOG001", "LOG002", "LOG003", "LOG004", "LOG005", "LOG006", "LOG007", "LOG009", "LOG011", "LOG012", "LOG014",
    "PRJ004", "PRJ005", "CKP006",
)  # fmt: skip
"""What was seen, not why."""
_SIGNS_OF_RATE = ("LOG003", "LOG004", "LOG007", "LOG011")
"""What speaks for the learning rate where nothing else was found."""
_SELDOM = ("CFG013", "PRB005")
"""Keys and parameters without effect: worth knowing, and seldom what makes a value infinite."""
_AFTERMATH = ("CKP001", "CKP002", "CKP003", "CKP004", "CKP005", "CKP009", "CKP013")
_BACKWARD = frozenset((
    "SQRT_POW_GRAD_AT_ZERO", "WHERE_UNSAFE_BRANCH", "NORMALIZE_ZERO_VECTOR", "INVTRIG_BOUNDARY", "LINALG_DEGENERATE",
    "LOG_DOMAIN", "EPS_UNDERFLOW", "FP16_OVERFLOW", "CLIP_NONFINITE",
))  # fmt: skip
_FIRST_STEPS = frozenset((
    "PURE_LOWP_OPTIMIZER", "EPS_UNDERFLOW", "OPTIMIZER_ZERO_DIV", "DATA_NONFINITE", "UNINITIALIZED_MEMORY",
    "LABEL_INVALID", "SQRT_POW_GRAD_AT_ZERO", "LOG_DOMAIN", "NORMALIZE_ZERO_VECTOR", "EMPTY_REDUCTION",
))  # fmt: skip
_GROWTH = frozenset(("LR_DIVERGENCE", "FP16_OVERFLOW", "EXP_OVERFLOW", "SCALER_MISUSE", "CONFIG_MISTAKE"))
_SCALE = frozenset(
    ("FP16_OVERFLOW", "LOSS_SCALE_COLLAPSE", "SCALER_MISUSE", "CONFIG_MISTAKE", "EPS_UNDERFLOW")
)
_FEW = 3


def rank_suspects(
    findings: Sequence[Finding], failed: ProjectRun | None, used: Collection[str] = ()
) -> list[Finding]:
    """Findings that can be a cause, the most likely first; one of a rule, in a file that is `used` if there is one."""
    likely = causes_that_fit(failed)
    kept: dict[str, Finding] = {}
    for finding in findings:
        if finding.code in _SYMPTOMS or finding.severity is Severity.INFO:
            continue
        if finding.code in _AFTERMATH and failed is not None:
            continue  # the run's own failure, saved
        if _of_another_run(finding, failed):
            continue
        first = kept.get(finding.code)
        if first is None or _order(finding, used) < _order(first, used):
            kept[finding.code] = finding
    ordered = sorted(
        kept.values(),
        key=lambda f: (
            f.severity.rank,
            f.proof is None,  # a failure that was located, and cured on its replay
            f.cause not in likely,
            f.code in _SELDOM,
            f.file or "",
            f.line or 0,
        ),
    )
    if not ordered:
        return [finding for finding in findings if finding.code in _SIGNS_OF_RATE][:1]
    if ordered[0].severity is not Severity.ERROR or not likely:
        return ordered
    return [f for f in ordered if f.severity is Severity.ERROR or f.cause in likely]


def _order(finding: Finding, used: Collection[str]) -> tuple[int, bool]:
    return finding.severity.rank, finding.file not in used


def causes_that_fit(failed: ProjectRun | None) -> frozenset[str]:
    """What the log of the failure speaks for; empty where nothing is known."""
    if failed is None or failed.window is None:
        return frozenset()
    likely: set[str] = set()
    for log in failed.logs:
        likely |= _signs(log, failed.window)
    return frozenset(likely)


def _signs(log: Log, window: FailureWindow) -> set[str]:
    likely: set[str] = set()
    series = log.series.get(window.series)
    if series is not None and series.role is Role.NORM:
        likely |= _BACKWARD
    likely |= _FIRST_STEPS if window.first - (log.first_step or 0) <= _FEW else _GROWTH
    if log.happened.get("scale-fell", 0) > 1:
        likely |= _SCALE
    return likely


def _of_another_run(finding: Finding, failed: ProjectRun | None) -> bool:
    """In a configuration that the failed run did not use, or in the log or a checkpoint of another."""
    if failed is None or finding.file is None:
        return False
    if finding.code.startswith("CFG"):
        return bool(failed.configs) and finding.file not in failed.configs
    if finding.code.startswith(("CKP", "LOG")):
        saved = {file for state in failed.saved for file in (state.path, *state.checkpoint.files)}
        return finding.file not in saved | {log.path for log in failed.logs}
    return False
