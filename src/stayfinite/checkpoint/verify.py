"""verify: is this checkpoint, on disk or in memory, fit to be saved, loaded or trained from?"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from stayfinite.findings import Finding, Severity, examine, worst_first
from stayfinite.findings.subjects.checkpoint import Checkpoint, ConfiguredRate, Problem, Tensor
from stayfinite.readers.checkpoint import (
    Location,
    Unreadable,
    examine_state,
    locate,
    measure_all,
    read_structure,
)
from stayfinite.readers.checkpoint.configured_rate import rates_beside
from stayfinite.readers.checkpoint.measure import Measured
from stayfinite.readers.checkpoint.read import step_from_name
from stayfinite.readers.checkpoint.sort_state import Sorted, finish


class Team(Protocol):
    """Several processes that examine one checkpoint together and come to the same verdict."""

    def first_trouble(self, trouble: str | None) -> str | None:
        """What kept any of them from reading it."""
        ...

    def measure(self, state: Sorted, jobs: int, advance: Callable[[int], None]) -> list[Measured]:
        """The statistics of all tensors, each measured by one of them."""
        ...


@dataclass(slots=True)
class CheckpointVerdict:
    """What was found in one checkpoint, worst first."""

    checkpoint: Checkpoint
    findings: list[Finding] = field(default_factory=list)
    unreadable: str | None = None
    """Why nothing could be read at all; then there is also a finding that says so."""
    location: Location | None = None

    @property
    def healthy(self) -> bool:
        """Nothing at error level."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def bad_tensors(self) -> list[Tensor]:
        """Tensors with a NaN or an Inf that is not there on purpose, in the order of the file."""
        return [
            t for t in self.checkpoint.tensors if t.statistics and t.statistics.bad and not t.additive_mask
        ]


def verify(
    path_or_state: str | os.PathLike[str] | Mapping[str, Any],
    *,
    jobs: int = 1,
    config_rates: Sequence[ConfiguredRate] | None = None,
    only: Collection[str] | None = None,
) -> CheckpointVerdict:
    """Examine one checkpoint: a file, a folder, or a state dict (any nesting of dicts, lists and tensors).

    No pickle is executed and no tensor is loaded whole. A file that cannot be read gives a verdict that is not
    healthy, with `unreadable` set; it does not raise. `only` limits the rules to these codes.
    """
    if isinstance(path_or_state, Mapping):
        checkpoint = examine_state(path_or_state)
        return CheckpointVerdict(checkpoint, worst_first(examine(checkpoint, only)))
    path = os.fspath(path_or_state)
    try:
        found = locate([path])
    except Unreadable as trouble:
        return unreadable_verdict(path, trouble, only)
    if len(found) > 1:
        return unreadable_verdict(
            path, Unreadable(f"{path}: there are {len(found)} checkpoints here; name one"), only
        )
    return judge(found[0], jobs=jobs, config_rates=config_rates, only=only)


def judge(
    location: Location,
    *,
    jobs: int = 1,
    config_rates: Sequence[ConfiguredRate] | None = None,
    only: Collection[str] | None = None,
    advance: Callable[[int], None] = lambda nbytes: None,
    team: Team | None = None,
) -> CheckpointVerdict:
    """Read, measure and examine one checkpoint, alone or with the other ranks of a `team`."""
    with _no_collection():
        return _judge(location, jobs, config_rates, only, advance, team)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's search for cycles, put off: it goes over all objects again and again while a hundred thousand tensors
    are being listed, and costs a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _judge(
    location: Location,
    jobs: int,
    config_rates: Sequence[ConfiguredRate] | None,
    only: Collection[str] | None,
    advance: Callable[[int], None],
    team: Team | None,
) -> CheckpointVerdict:
    state: Sorted | None = None
    trouble: Exception | None = None
    try:
        state = read_structure(location)
    except (Unreadable, OSError) as error:
        trouble = error
    if team is not None:
        elsewhere = team.first_trouble(str(trouble) if trouble else None)
        trouble = Unreadable(elsewhere) if elsewhere else None
    if trouble is not None or state is None:
        return unreadable_verdict(location.path, trouble or Unreadable(location.path), only, location)
    if team is not None:
        measured = team.measure(state, jobs, advance)
    else:
        measured = measure_all(state, jobs=jobs, advance=advance)
    finish(state, measured)
    checkpoint = state.checkpoint
    if checkpoint.optimizers:
        checkpoint.configured = list(rates_beside(location.path) if config_rates is None else config_rates)
    return CheckpointVerdict(checkpoint, worst_first(examine(checkpoint, only)), location=location)


def unreadable_verdict(
    path: str, trouble: Exception, only: Collection[str] | None = None, location: Location | None = None
) -> CheckpointVerdict:
    """A verdict for a file that gave nothing."""
    message = str(trouble)
    files = list(location.files) if location is not None else []
    checkpoint = Checkpoint(path, files=files, problems=[Problem("damaged", path, message)])
    step_from_name(checkpoint)
    return CheckpointVerdict(checkpoint, examine(checkpoint, only), unreadable=message, location=location)
