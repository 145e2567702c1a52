"""Runs what applies: lint, the environment, logs, checkpoints, data, a probe; within a budget."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stayfinite.checkpoint.verify import CheckpointVerdict
from stayfinite.checkpoint.verify import judge as judge_checkpoint
from stayfinite.data.examine import DataVerdict, examine_data
from stayfinite.doctor.budget import Budget
from stayfinite.doctor.inventory import Inventory
from stayfinite.doctor.model_probe import ModelProbe
from stayfinite.findings import Finding, examine
from stayfinite.findings.subjects.checkpoint import Kind
from stayfinite.findings.subjects.environment import Environment
from stayfinite.findings.subjects.log import Role
from stayfinite.lint.examine import Report, lint
from stayfinite.lint.settings import Settings
from stayfinite.logs.examine import LogVerdict, examine_log
from stayfinite.readers.checkpoint import Location
from stayfinite.readers.checkpoint.locate import Layout
from stayfinite.readers.environment import read_environment
from stayfinite.readers.launcher import Launcher, read_launcher
from stayfinite.readers.log import UnreadableLog, open_log
from stayfinite.report.record.folder import IncidentFile, read_incident

_NUMBERED = re.compile(r"(step|epoch|iter|ckpt|checkpoint|last|best|latest|final)", re.IGNORECASE)


class Probe(Protocol):
    """Runs the user's model from a checkpoint; only ever called because the user named it."""

    def __call__(self, checkpoint: str) -> str | None:
        """What is wrong with it in one sentence; None where all values are finite."""
        ...


@dataclass(slots=True)
class Examination:
    """Everything that was read, as each part's own verdict."""

    inventory: Inventory
    lint: Report = field(default_factory=Report)
    environment: Environment = field(default_factory=Environment)
    environment_findings: list[Finding] = field(default_factory=list)
    logs: list[LogVerdict] = field(default_factory=list)
    checkpoints: list[CheckpointVerdict] = field(default_factory=list)
    """Those a run can go on from."""
    weights: list[CheckpointVerdict] = field(default_factory=list)
    """Weights alone: a frozen teacher, an exported model."""
    data: list[DataVerdict] = field(default_factory=list)
    launchers: list[Launcher] = field(default_factory=list)
    incidents: list[IncidentFile] = field(default_factory=list)
    model: ModelProbe | None = None
    """The model before its training, where the project has a factory for it."""
    passed_over: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def read_anything(self) -> bool:
        return bool(
            self.lint.files or self.logs or self.checkpoints or self.weights or self.data or self.incidents
        )


@dataclass(slots=True)
class Progress:
    """How far it is, for whoever shows it."""

    file: Callable[[str], None] = lambda name: None
    nbytes: Callable[[int], None] = lambda nbytes: None


def examine_project(
    inventory: Inventory, settings: Settings, budget: Budget, progress: Progress | None = None, jobs: int = 1
) -> Examination:
    """Read all that the budget allows. Ctrl-C ends the reading, not the answer."""
    shown = progress or Progress()
    found = Examination(inventory, passed_over=list(inventory.passed_over))
    try:
        found.lint = lint([inventory.root], settings, advance=shown.file)
        found.passed_over += found.lint.unreadable
        found.environment = read_environment(inventory.root)
        found.environment_findings = examine(found.environment)
        _read_launchers(found)
        _read_incidents(found)
        _read_logs(found, budget, shown)
        _read_checkpoints(found, budget, shown, jobs)
        _read_data(found, budget, shown, jobs)
    except KeyboardInterrupt:
        budget.stop()
        found.interrupted = True
    return found


def _read_launchers(found: Examination) -> None:
    for path in found.inventory.launchers:
        try:
            found.launchers.append(read_launcher(path))
        except OSError as trouble:
            found.passed_over.append(f"{path}: cannot be read ({trouble.strerror or trouble})")


def _read_incidents(found: Examination) -> None:
    for path in found.inventory.incidents:
        incident = read_incident(path.parent)
        if incident.problem is None:
            found.incidents.append(incident)
        else:
            found.passed_over.append(incident.problem)


def _size(paths: Sequence[str]) -> int:
    total = 0
    for path in paths:
        try:
            total += Path(path).stat().st_size
        except OSError:
            continue  # gone meanwhile; reading it says so
    return total


def _read_logs(found: Examination, budget: Budget, shown: Progress) -> None:
    """Text and tables without a loss or norm are some other file, and not worth a word; what is no text is named."""
    for path in found.inventory.logs:
        shown.file(path)
        size = _size([path])
        if not budget.allows(path, size):
            continue
        start = time.monotonic()
        verdict = examine_log(path, advance=shown.nbytes)
        budget.spent(size, time.monotonic() - start)
        if verdict.unreadable is not None:
            certain = path.endswith((".jsonl", ".wandb", "trainer_state.json")) or ".tfevents." in path
            if certain or (path.endswith(".log") and not _is_text(path)):
                found.passed_over.append(verdict.unreadable)
        elif verdict.log.of_role(Role.LOSS, Role.COMPONENT, Role.EVALUATION, Role.NORM):
            found.logs.append(verdict)


def _is_text(path: str) -> bool:
    """It begins with words, so it may be the log of something else."""
    try:
        with open_log(path) as handle:
            start = handle.read(4096)
    except (UnreadableLog, OSError):
        return False
    try:
        start.decode()
    except UnicodeDecodeError as trouble:
        if trouble.start < len(start) - 3:  # else a character that was cut by the limit
            return False
    return bool(start.strip()) and b"\0" not in start


def _read_checkpoints(found: Examination, budget: Budget, shown: Progress, jobs: int) -> None:
    """The newest first: where the time runs out, the old ones are those not read."""
    for location in sorted(found.inventory.checkpoints, key=_changed, reverse=True):
        shown.file(location.path)
        size = _size(location.files)
        if not budget.allows(location.path, size):
            continue
        start = time.monotonic()
        verdict = judge_checkpoint(location, jobs=jobs, config_rates=(), advance=shown.nbytes)
        budget.spent(size, time.monotonic() - start)
        if verdict.unreadable is not None:
            if _looks_like_checkpoint(location):
                found.checkpoints.append(verdict)
            found.passed_over.append(verdict.unreadable)
        elif _resumable(verdict):
            found.checkpoints.append(verdict)
        elif _holds_weights(verdict) or location.layout is not Layout.FILE:
            found.weights.append(verdict)
        else:
            found.inventory.data.append((location.path, None))


def _changed(location: Location) -> float:
    times = []
    for path in location.files:
        try:
            times.append(Path(path).stat().st_mtime)
        except OSError:
            continue  # gone meanwhile
    return max(times, default=0.0)


def _looks_like_checkpoint(location: Location) -> bool:
    return location.layout is not Layout.FILE or _NUMBERED.search(Path(location.path).name) is not None


def _resumable(verdict: CheckpointVerdict) -> bool:
    checkpoint = verdict.checkpoint
    if checkpoint.path.endswith((".npy", ".npz")):
        return bool(checkpoint.optimizers)
    return bool(checkpoint.optimizers or (checkpoint.step is not None and _holds_weights(verdict)))


def _holds_weights(verdict: CheckpointVerdict) -> bool:
    """A model's state has dotted names (layers.0.weight); a cache of samples has plain ones."""
    if verdict.checkpoint.path.endswith((".npy", ".npz")):
        return False
    named = verdict.checkpoint.of_kind(Kind.WEIGHTS, Kind.AVERAGE, Kind.BUFFERS)
    return any(tensor.key.endswith(("weight", "bias")) or "." in tensor.key for tensor in named)


def _read_data(found: Examination, budget: Budget, shown: Progress, jobs: int) -> None:
    logs = {verdict.log.path for verdict in found.logs}
    states = {path for verdict in found.checkpoints + found.weights for path in verdict.checkpoint.files}
    seen: set[str] = set()
    for path, images in found.inventory.data:
        if path in logs or path in states or path in seen:
            continue
        seen.add(path)
        shown.file(path)
        size = _size(images or [path])
        if not budget.allows(path, size):
            continue
        start = time.monotonic()
        verdict = examine_data(path, images_in=images, jobs=jobs, advance=shown.nbytes)
        budget.spent(size, time.monotonic() - start)
        if verdict.unreadable is not None:
            if verdict.unreadable not in found.passed_over:
                found.passed_over.append(verdict.unreadable)
        else:
            found.data.append(verdict)
