"""Maintenance: what is done between two steps, when all state is whole. Looks, copies, saves; and the way back in."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stayfinite.findings.update_size import MANY_TIMES, rounded
from stayfinite.guarding import saving
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.inspection import Inspection
from stayfinite.guarding.keeper import Keeper
from stayfinite.guarding.precaution import Precaution
from stayfinite.guarding.run import GuardedRun
from stayfinite.hooks.interrupts import interrupts_pass, interrupts_wait
from stayfinite.recover import CheckpointError
from stayfinite.recover.position import DataPosition
from stayfinite.recover.ranks import rank, world_size
from stayfinite.recover.replicated_copy import Slot
from stayfinite.recover.rng import RngState
from stayfinite.recover.save_meeting import SaveMeeting
from stayfinite.report.refusal import listed
from stayfinite.shards import is_sharded

Batch = TypeVar("Batch")
_JUMP = 4.0  # of the largest value of all state since the last copy


@dataclass(frozen=True, slots=True)
class Intervals:
    """Steps between two of each; 0 means never. `keep`: how many numbered checkpoints stay."""

    check_every: int
    snapshot_every: int
    save_every: int
    keep: int


class Maintenance:
    """Owns the checkpoints and the position in the data."""

    def __init__(self, run: GuardedRun, explainer: Explainer, intervals: Intervals) -> None:
        self._run, self._intervals = run, intervals
        self._state, self._health, self._probe = run.state, run.health, run.probe
        self._recovery, self._watcher, self._reporter = run.recovery, run.watcher, run.reporter
        self._last = -1
        self._owed = False  # a copy was due in the middle of a trouble: it is taken when that is over
        self._obstacle: str | None = None  # why the last copy could not be taken
        self._largest_kept = 0.0  # the largest value in the last copy
        self.went_back = False  # what was saved last for the end of a run is the last good state
        self.position = DataPosition()
        self._keeper = Keeper(intervals.snapshot_every)
        self._precaution = Precaution(run, self._keeper)
        self._meeting = SaveMeeting(run.ranks)
        self._inspection = Inspection(run, explainer)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """An epoch; it begins with a look at the run's health."""
        seen = self._probe.look("epoch")
        if seen.is_bad:
            self._reporter.tell("warning", f"epoch {self.position.epoch} begins, but {seen}")
        yield from self.position.batches(loader)

    @interrupts_wait()
    def before_step(self) -> None:
        """Do what is due before this step, once: looks that repair and copies to go back to are whole."""
        step, due = self._reporter.step, self._intervals
        if step == self._last:
            return
        self._last = step
        self._recovery.staging.between_steps()
        ladder, last_good = self._recovery.ladder, self._recovery.last_good
        if ladder.failures_in_a_row == 0:
            self._precaution.before_step(step, self._keep_if_good, self.clean_checkpoint)
        is_time = self._owed or self._keeper.is_due(step) or last_good.is_elsewhere
        self._owed = is_time and not ladder.is_calm
        may = self._precaution.may_copy(step) or not last_good.available
        copy = is_time and not self._owed and may  # under join() each rank has its own
        look = due.check_every > 0 and step > 0 and step % due.check_every == 0
        if copy or look:
            good = self._inspection.look(before_copy=copy)
            if copy and good and self._update_was_ordinary(step) and self._probe_agrees(step):
                self._keep(step, self._inspection.alike)
        if due.save_every and step and step % due.save_every == 0:
            with interrupts_pass():  # may take long; a file is replaced by a whole one, or not at all
                self._save_if_possible()

    def _keep_if_good(self, step: int) -> None:
        if self._inspection.look() and self._probe_agrees(step):
            self._keep(step)

    def _update_was_ordinary(self, step: int) -> bool:
        """Weights that one update has moved by many times their size are finite, and nothing to go back to. What one of
        several ranks measures decides nothing, and the device is asked only if the largest value has jumped."""
        if self._run.ranks.together or not self._recovery.last_good.available:
            return True
        jumped = self._health.largest > _JUMP * self._largest_kept
        moved = self._watcher.pending_update() if jumped else None
        if moved is None or moved < MANY_TIMES:
            return True
        self._reporter.tell(
            "warning",
            f"the state of step {step} does not become the last good one: the update before it was about "
            f"{rounded(moved)} times as large as the weights",
        )
        return False

    def _probe_agrees(self, step: int) -> bool:
        """May the state as it is now become the one to go back to? The same answer on every rank."""
        seen = self._probe.look("snapshot")
        if seen.is_bad:
            self._reporter.tell(
                "warning", f"the state of step {step} does not become the last good one: {seen}"
            )
        return not self._run.ranks.any(seen.is_bad)

    def _keep(self, step: int, replicated: Sequence[Slot] = ()) -> None:
        """Where the ranks have not compared what they hold just before, each keeps all of it."""
        try:
            self._recovery.keep(step, replicated)
            self._largest_kept = self._health.largest
        except Exception as error:  # noqa: BLE001 - a model whose state cannot be copied can be trained all the same
            what = f"the state could not be copied ({type(error).__name__}: {error})"
            if what != self._obstacle:
                self._obstacle = what
                self._reporter.tell(
                    "warning", f"step {step}: {what}, so there is nothing new to roll back to"
                )

    def save(self, path: Path) -> Path:
        """Write everything the run needs to go on, or raise CheckpointError and write nothing."""
        if world_size() > 1 and not self._run.ranks.alone:
            return self._save_on_ranks(path, all_must_come=False)
        self._inspection.look()
        seen = self._probe.look("save")
        if seen.is_bad:
            raise CheckpointError(
                f"{path} was not written: {seen}. A checkpoint that was there before is untouched."
            )
        saving.save(path, self._state, self._health, self._reporter.step, self.position, self._recovery)
        return path

    def _save_on_ranks(self, path: Path, *, all_must_come: bool) -> Path:
        """Nothing is repaired here: what is bad on a rank is put back on all of them before the next step."""
        bad = self._inspection.bad_here()
        looks_here = rank() == 0 or self._is_sharded
        if not bad and looks_here and (seen := self._probe.look("save")).is_bad:
            bad = [str(seen)]
        content = saving.RankContent(self._state, self._reporter.step, self.position, self._recovery)
        if self._is_sharded:
            saving.save_shards(path, content, bad, self._run.ranks)
        else:
            absent = saving.save_replicas(
                path,
                content,
                self._health,
                bad,
                self._meeting,
                equal=self._inspection.are_replicas,
                all_must_come=all_must_come,
            )
            if absent:
                self._reporter.tell(
                    "warning",
                    f"{path}: guard.save was not called on rank {', '.join(map(str, absent))}; their random states and "
                    "positions in the data are not in it. Call guard.save on all ranks: rank 0 writes.",
                )
        return path

    @property
    def _is_sharded(self) -> bool:
        return any(is_sharded(tensor) for _, _, tensor in self._state.tensors())

    def agreed(self, is_bad: bool) -> tuple[bool, bool]:
        """Is the state bad on any rank, and can all go back? The same answer on every rank; all must ask."""
        return self._inspection.agreed(is_bad)

    def obstacle_to_saving(self) -> str | None:
        """What is not finite now, after all that can be repaired was, as a sentence."""
        if self._inspection.look():
            return None
        left, _ = self._inspection.seen_by_all()
        return f"{listed(left)} holds NaN or Inf" if left else None

    def state_dict(self) -> dict[str, Any]:
        """What the guard knows beside the state of model, optimizers, schedulers and scaler."""
        return {
            "step": self._reporter.step,
            "data": self.position.state_dict(),
            "guard": saving.memory_of(self._recovery),
            "rng": self.position.rng().to_saved(),
        }

    @interrupts_wait()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            step, data = int(state["step"]), state["data"]
            rng = RngState.from_saved(state["rng"])
            saving.remember(self._recovery, state["guard"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"this is no state of a guard ({type(error).__name__}: {error}); pass what guard.state_dict() gave"
            ) from error
        self._reporter.step = step
        self.position.load_state_dict(data)
        rng.restore()
        self._watcher.forget()
        self._run.foresight.went_back(step)
        self._keep(step)

    def look_at_the_end(self) -> None:
        """The run is over: what is bad now was made by its last step, or by somebody else since.

        Each rank looks for itself: the others may have ended, or still be in the middle of a step.
        """
        with self._run.ranks.ignored():
            self._inspection.look()

    def save_numbered(self) -> Path:
        """The same under the step's number; older ones go. Replicas and shards of several ranks are in one place."""
        folder, together = self._run.folder, self._is_sharded or self._inspection.are_replicas
        if together and rank() > 0:
            folder = folder.parent
        keep = self._intervals.keep if rank() == 0 or not together else 0

        def save(path: Path) -> None:
            if together and world_size() > 1 and not self._run.ranks.alone:
                self._save_on_ranks(path, all_must_come=True)
            else:
                self.save(path)

        return saving.save_numbered(folder / "snapshots", self._reporter.step, keep, save)

    def _save_if_possible(self) -> None:
        """A periodic checkpoint that cannot be written is said, not raised: the training is worth more."""
        try:
            self.save_numbered()
        except CheckpointError as error:
            self._reporter.tell("warning", str(error))
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    @interrupts_wait()
    def restore(self, path: Path, resume_lr: str) -> None:
        """Load a verified checkpoint into the live run, and say whose learning rates are used."""
        self._reporter.step, text = saving.load(
            path, self._state, self._health, self.position, self._recovery, resume_lr, self._run.ranks
        )
        self._watcher.forget()
        self._run.foresight.went_back(self._reporter.step)
        self._reporter.tell("restore", text)
        seen = self._probe.look("restore")
        if seen.is_bad:
            self._recovery.last_good.forget()
            self._reporter.tell("warning", f"{path} is restored, but {seen}; restore an older one")
        else:
            self._keep(self._reporter.step)

    def clean_checkpoint(self) -> Path | None:
        """For the end of a run: the state as it is if it is finite, else the last good one; None if it cannot be."""
        bad, can_go_back = self.agreed(bool(self._health.bad()))
        bad = bad or self._run.ranks.any(self._probe.look("stop").is_bad)
        self.went_back = bad and can_go_back
        if self.went_back:
            self._recovery.go_back()
        try:
            return self.save_numbered()
        except CheckpointError as error:
            self._reporter.tell("warning", str(error))
            return None
