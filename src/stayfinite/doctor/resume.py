"""Before a resume: is it safe to go on from this checkpoint, here, with this code and these settings?"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stayfinite.checkpoint.verify import CheckpointVerdict
from stayfinite.doctor.code_changes import code_since
from stayfinite.doctor.examine import Examination
from stayfinite.doctor.runs import saved_state
from stayfinite.findings import Finding, Severity
from stayfinite.findings.advice import CheckedItem, Status
from stayfinite.findings.subjects.checkpoint import Kind
from stayfinite.findings.subjects.project import ProjectRun, SavedState
from stayfinite.report.html.words import count

_COPIES_ON_DISK = 3  # the present one, the next, and the one being written
_NEAR = 1e-3
_SETS_RATE = re.compile(r"""\[["'](?:lr|initial_lr)["']\]\s*=(?!=)|\bbase_lrs\s*=(?!=)""")


@dataclass(slots=True)
class ResumeCheck:
    """Go or no-go, item by item."""

    checkpoint: str
    items: list[CheckedItem] = field(default_factory=list)

    @property
    def go(self) -> bool:
        return not any(item.blocking and item.status is Status.MISSING for item in self.items)

    @property
    def reasons(self) -> list[str]:
        return [f"{i.title}: {i.detail}" for i in self.items if i.blocking and i.status is Status.MISSING]


def check_resume(found: Examination, run: ProjectRun, verdict: CheckpointVerdict) -> ResumeCheck:
    """Every item that speaks for or against, in the order in which people should read them."""
    wanted = os.path.realpath(verdict.checkpoint.path)
    saved = next((one for one in run.saved if os.path.realpath(one.path) == wanted), saved_state(verdict))
    check = ResumeCheck(verdict.checkpoint.path)
    check.items = [
        *_checkpoint(verdict, saved, run),
        _complete(verdict, found),
        _moments(verdict),
        _scaler(verdict, run),
        _rate(verdict, run, found),
        _configuration(found, run),
        _source(found),
        _code(found, saved),
        *_cured(found, run),
        _data(found),
        *_resources(found, verdict),
    ]
    return check


def _checkpoint(verdict: CheckpointVerdict, saved: SavedState, run: ProjectRun) -> Iterator[CheckedItem]:
    bad = [f for f in verdict.findings if f.severity is Severity.ERROR]
    if bad:
        yield CheckedItem(
            "checkpoint is whole and finite", Status.MISSING, bad[0].message, (verdict.checkpoint.path,)
        )
    else:
        tensors = len(verdict.checkpoint.tensors)
        yield CheckedItem(
            "checkpoint is whole and finite",
            Status.DONE,
            f"{tensors} tensors, every value finite",
            (verdict.checkpoint.path,),
        )
    title = "written before the failure"
    if run.window is None:
        note = "its run's log shows no failure" if run.logs else "no log of its run was found"
        yield CheckedItem(title, Status.NOT_APPLICABLE if run.logs else Status.UNKNOWN, note)
        return
    where = (f"{run.window.log}:{run.window.line}",)
    outside = run.outside_failure(saved)
    if outside is None:
        yield CheckedItem(
            title, Status.UNKNOWN, f"its step is not known; the failure is at {run.window.words}", where
        )
    elif outside:
        yield CheckedItem(
            title, Status.DONE, f"step {saved.step}; the failure is at {run.window.words}", where
        )
    else:
        good = run.last_good()
        instead = f"; use {good.path}" if good is not None else ""
        yield CheckedItem(
            title,
            Status.MISSING,
            f"step {saved.step} lies in the failure ({run.window.words}){instead}",
            where,
        )
    title = "forward pass from it is finite"
    if saved.dead is not None:
        yield CheckedItem(title, Status.MISSING, saved.dead, (saved.path,))
    elif saved.probed:
        yield CheckedItem(title, Status.DONE, "the probe's values are finite", (saved.path,))


def _complete(verdict: CheckpointVerdict, found: Examination) -> CheckedItem:
    checkpoint = verdict.checkpoint
    present = [
        name
        for name, there in (
            ("weights", bool(checkpoint.of_kind(Kind.WEIGHTS))),
            ("optimizer", bool(checkpoint.optimizers)),
            ("scheduler", bool(checkpoint.schedulers)),
            ("scaler", bool(checkpoint.scalers)),
            ("averages", bool(checkpoint.of_kind(Kind.AVERAGE))),
            ("random states", bool(checkpoint.of_kind(Kind.RANDOM))),
        )
        if there
    ]
    step = f"step {checkpoint.step}" if checkpoint.step is not None else "no step"
    detail = f"{', '.join(present) or 'nothing known'}; {step}"
    lost = [name for name in ("weights", "optimizer") if name not in present]
    if _uses_schedule(found) and "scheduler" not in present:
        lost.append("scheduler")
    if lost:
        return CheckedItem("checkpoint is complete", Status.MISSING, f"without {' and '.join(lost)} ({detail})",
                           (checkpoint.path,))  # fmt: skip
    return CheckedItem("checkpoint is complete", Status.DONE, detail, (checkpoint.path,))


def _uses_schedule(found: Examination) -> bool:
    return any(
        event.what == "schedule"
        for source in found.lint.read
        for facts in source.functions
        for event in facts.events
    )


def _moments(verdict: CheckpointVerdict) -> CheckedItem:
    title = "optimizer moments"
    optimizers = verdict.checkpoint.optimizers
    if not optimizers:
        return CheckedItem(title, Status.MISSING, "there is no optimizer state: moments start empty")
    entries = sum(optimizer.entries for optimizer in optimizers)
    bad = [f for f in verdict.findings if f.code in ("CKP003", "CKP011", "CKP015")]
    if any(f.severity is Severity.ERROR for f in bad):
        return CheckedItem(title, Status.MISSING, bad[0].message)
    steps = [optimizer.step for optimizer in optimizers if optimizer.step is not None]
    if not entries:
        return CheckedItem(
            title,
            Status.UNKNOWN,
            "no parameter has any: plain SGD, or saved before the first update",
            blocking=False,
        )
    after = f" after {max(steps):g} updates" if steps else ""
    return CheckedItem(title, Status.DONE, f"of {entries} parameters{after}")


def _scaler(verdict: CheckpointVerdict, run: ProjectRun) -> CheckedItem:
    title = "gradient scaler"
    wants = any(claim.precision == "fp16" and claim.acts for claim in run.precisions)
    scalers = verdict.checkpoint.scalers
    if scalers:
        scale = min(scaler.scale for scaler in scalers)
        if not math.isfinite(scale) or scale < 1.0:
            return CheckedItem(
                title, Status.MISSING, f"its scale is {scale:g}: gradients vanish or become NaN"
            )
        return CheckedItem(title, Status.DONE, f"scale {scale:g}")
    if wants:
        return CheckedItem(
            title, Status.MISSING, "float16 is asked for, and the checkpoint has no scaler state: it starts anew",
            blocking=False,
        )  # fmt: skip
    return CheckedItem(title, Status.NOT_APPLICABLE, "nothing asks for float16")


def _rate(verdict: CheckpointVerdict, run: ProjectRun, found: Examination) -> CheckedItem:
    title = "learning rate, old and new"
    stored = verdict.checkpoint.rates()
    asked = [rate for rate in run.rates if rate.origin in ("configuration", "launcher")]
    if not stored:
        return CheckedItem(title, Status.UNKNOWN, "the checkpoint holds no rate", blocking=False)
    known = [rate for rates in stored.values() for rate in rates]
    now = ", ".join(f"{rate:.4g}" for rate in stored["current"][:3])
    old = f"resumes with {now} (initial {stored['initial'][-1]:.4g}, peak {stored['peak'][-1]:.4g})"
    if not asked:
        return CheckedItem(
            title, Status.UNKNOWN, f"{old}; which configuration is this run's is not known", blocking=False
        )
    words = ", ".join(f"{rate.words} {rate.value:.4g}" for rate in asked[:3])
    where = tuple(f"{rate.file}:{rate.line}" for rate in asked[:3])
    if any(math.isclose(rate.value, value, rel_tol=_NEAR) for rate in asked for value in known):
        return CheckedItem(title, Status.DONE, f"{old}; asked for: {words}", where)
    for source in found.lint.read:
        match = _SETS_RATE.search(source.text)
        if match is not None and "load_state_dict" in source.calls:
            line = source.text.count("\n", 0, match.start()) + 1
            return CheckedItem(
                title,
                Status.UNKNOWN,
                f"{old}; asked for: {words}; the source sets rates itself: check that it does so after loading",
                (*where, f"{source.path}:{line}"),
                blocking=False,
            )
    return CheckedItem(
        title,
        Status.MISSING,
        f"{old}, not with what is asked for ({words}): set group['lr'] and group['initial_lr'] and the scheduler's "
        "base_lrs after loading",
        where,
    )


def _judged(title: str, findings: Sequence[Finding], good: str) -> CheckedItem:
    bad = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not bad:
        warned = sum(finding.severity is Severity.WARNING for finding in findings)
        return CheckedItem(title, Status.DONE, good + (f"; {count(warned, 'warning')}" if warned else ""))
    worst = bad[0]
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    where = f"{worst.file}:{worst.line}" if worst.line else worst.file or ""
    return CheckedItem(
        title, Status.MISSING, f"{worst.code} {worst.message}{more}", (where,) if where else ()
    )


def _configuration(found: Examination, run: ProjectRun) -> CheckedItem:
    title = "configuration"
    if not found.lint.configs:
        return CheckedItem(title, Status.UNKNOWN, "no configuration was found", blocking=False)
    own = run.configs or [config.path for config in found.lint.configs]
    findings = [f for f in found.lint.findings if f.code.startswith("CFG") and f.file in own]
    names = ", ".join(own[:3])
    return _judged(title, findings, f"nothing at error level in {names}")


def _source(found: Examination) -> CheckedItem:
    title = "source"
    if not found.lint.sources:
        return CheckedItem(title, Status.UNKNOWN, "no Python source was found", blocking=False)
    findings = [f for f in found.lint.findings if f.code.startswith("SRC")]
    return _judged(title, findings, f"nothing at error level in {count(found.lint.sources, 'file')}")


def _code(found: Examination, saved: SavedState) -> CheckedItem:
    title = "code since the checkpoint"
    if saved.written is None:
        return CheckedItem(
            title, Status.UNKNOWN, "when the checkpoint was written is not known", blocking=False
        )
    changes = code_since(found.inventory.root, saved.written, _code_files(found))
    if not changes.files and not changes.commits:
        return CheckedItem(title, Status.DONE, f"unchanged since {changes.since} (by {changes.by})")
    parts = [f"{count(len(changes.files), 'file')} changed since {changes.since} (by {changes.by})"]
    if changes.commits:
        parts.append(f"{count(len(changes.commits), 'commit')}, the last: {changes.commits[0]}")
    if changes.added or changes.removed:
        parts.append(f"+{changes.added} -{changes.removed} lines")
    return CheckedItem(
        title, Status.UNKNOWN, "; ".join(parts) + ": look at them, a changed model or loss does not fit its moments",
        tuple(changes.files[:10]), blocking=False,
    )  # fmt: skip


def _cured(found: Examination, run: ProjectRun) -> Iterator[CheckedItem]:
    """A run that failed, with the same code and settings, fails again."""
    if run.window is None:
        return
    title = "something changed since the failure"
    try:
        ended = Path(run.window.log).stat().st_mtime
    except OSError:
        yield CheckedItem(
            title, Status.UNKNOWN, "when the failing log was written is not known", blocking=False
        )
        return
    changes = code_since(found.inventory.root, ended, _code_files(found))
    if changes.files or changes.commits:
        names = tuple(changes.files[:10])
        yield CheckedItem(
            title, Status.DONE, f"{count(len(changes.files), 'file')} changed (by {changes.by})", names
        )
        return
    yield CheckedItem(
        title,
        Status.MISSING,
        f"this run failed at {run.window.words}, and neither code nor configuration changed since: it will fail again",
        (f"{run.window.log}:{run.window.line}",),
    )


def _code_files(found: Examination) -> list[str]:
    return [source.path for source in found.lint.read] + [config.path for config in found.lint.configs]


def _data(found: Examination) -> CheckedItem:
    title = "data"
    if not found.data:
        return CheckedItem(title, Status.NOT_APPLICABLE, "no data file in this folder", blocking=False)
    findings = [finding for verdict in found.data for finding in verdict.findings]
    return _judged(title, findings, f"nothing at error level in {count(len(found.data), 'file')}")


def _resources(found: Examination, verdict: CheckpointVerdict) -> Iterator[CheckedItem]:
    size = verdict.checkpoint.nbytes
    need = _COPIES_ON_DISK * size
    free, memory = found.environment.disk_free, found.environment.memory_free
    if free is None:
        yield CheckedItem("disk", Status.UNKNOWN, "free space could not be read", blocking=False)
    else:
        status = Status.DONE if free >= need else Status.MISSING
        yield CheckedItem(
            "disk", status, f"{free / 1e9:.1f} GB free; three checkpoints need {need / 1e9:.2g} GB"
        )
    if memory is None:
        yield CheckedItem("memory", Status.UNKNOWN, "free memory could not be read", blocking=False)
    else:
        status = Status.DONE if memory >= 2 * size else Status.MISSING
        yield CheckedItem(
            "memory",
            status,
            f"{memory / 1e9:.1f} GB available; loading it beside the model needs {2 * size / 1e9:.2g} GB",
        )
