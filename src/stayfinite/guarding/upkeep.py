"""Upkeep: what is done between two steps, when all state is whole. Looks, copies, saves; and the way back in."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stayfinite.guarding import saving
from stayfinite.guarding.run import GuardedRun
from stayfinite.recover import CheckpointError
from stayfinite.recover.position import DataPosition

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class Intervals:
    """Steps between two of each; 0 means never. `keep`: how many numbered checkpoints stay."""

    check_every: int
    snapshot_every: int
    save_every: int
    keep: int


class Upkeep:
    """Owns the checkpoints and the position in the data."""

    def __init__(self, run: GuardedRun, intervals: Intervals) -> None:
        self._run, self._intervals = run, intervals
        self._state, self._health, self._probe = run.state, run.health, run.probe
        self._recovery, self._watcher, self._telling = run.recovery, run.watcher, run.telling
        self._last = -1
        self.position = DataPosition()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """An epoch; it begins with a look at the run's health."""
        seen = self._probe.look("epoch")
        if seen.is_bad:
            self._telling.tell("warning", f"epoch {self.position.epoch} begins, but {seen}")
        yield from self.position.batches(loader)

    def before_step(self) -> None:
        """Do what is due before this step, once."""
        step, due = self._telling.step, self._intervals
        if step == self._last:
            return
        self._last = step
        self._recovery.staging.between_steps()
        if due.save_every and step and step % due.save_every == 0:
            self._save_if_possible()
        calm = self._recovery.ladder.failures_in_a_row == 0
        if calm and due.snapshot_every and step % due.snapshot_every == 0:
            if self._is_good(step):
                self._recovery.keep(step)
        elif due.check_every and step % due.check_every == 0:
            self._watcher.check_state(tensor for _, _, tensor in self._health.tensors())

    def _is_good(self, step: int) -> bool:
        """May the state as it is now become the one to go back to? The same answer on every rank."""
        if self._run.any_rank(bool(self._health.bad())):
            return False
        seen = self._probe.look("snapshot")
        if seen.is_bad:
            self._telling.tell(
                "warning", f"the state of step {step} does not become the last good one: {seen}"
            )
        return not self._run.any_rank(seen.is_bad)

    def save(self, path: Path) -> Path:
        """Write everything the run needs to go on, or raise CheckpointError and write nothing."""
        seen = self._probe.look("save")
        if seen.is_bad:
            raise CheckpointError(
                f"{path} was not written: {seen}. A checkpoint that was there before is untouched."
            )
        saving.save(path, self._state, self._health, self._telling.step, self.position, self._recovery)
        return path

    def save_numbered(self) -> Path:
        """The same under the step's number; older ones go."""
        return saving.save_numbered(
            self._run.folder / "snapshots", self._telling.step, self._intervals.keep, self.save
        )

    def _save_if_possible(self) -> None:
        """A periodic checkpoint that cannot be written is said, not raised: the training is worth more."""
        try:
            self.save_numbered()
        except CheckpointError as error:
            self._telling.tell("warning", str(error))
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def restore(self, path: Path, resume_lr: str) -> None:
        """Load a verified checkpoint into the live run, and say whose learning rates are used."""
        self._telling.step, text = saving.load(
            path, self._state, self._health, self.position, self._recovery, resume_lr
        )
        self._watcher.forget()
        self._telling.tell("restore", text)
        seen = self._probe.look("restore")
        if seen.is_bad:
            self._recovery.last_good.forget()
            self._telling.tell("warning", f"{path} is restored, but {seen}; restore an older one")
        else:
            self._recovery.keep(self._telling.step)

    def clean_checkpoint(self) -> Path | None:
        """For the end of a run: the state as it is if it is finite, else the last good one; None if it cannot be."""
        bad = self._run.any_rank(bool(self._health.bad())) or self._run.any_rank(
            self._probe.look("stop").is_bad
        )
        if bad and self._recovery.last_good.available:
            self._recovery.go_back()
        try:
            return self.save_numbered()
        except CheckpointError as error:
            self._telling.tell("warning", str(error))
            return None
