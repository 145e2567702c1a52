"""Project: what configuration, source, launcher, logs and checkpoints say together, as plain data.

A project has runs; a run has logs and checkpoints, and the settings that are known to be its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stayfinite.findings.subjects.checkpoint import Checkpoint
from stayfinite.findings.subjects.log import Log


@dataclass(frozen=True, slots=True)
class RateClaim:
    """A learning rate that one place names."""

    value: float
    origin: str  # configuration, launcher, log, optimizer, scheduler
    words: str  # "lr", "highest lr", "initial"...
    file: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class PrecisionClaim:
    """A precision (fp16, bf16, fp32) that one place names."""

    precision: str
    origin: str  # configuration, launcher, source, log, checkpoint
    words: str
    file: str
    line: int | None = None
    acts: bool = True  # False: nothing reads the setting, or it stands behind a test


@dataclass(slots=True)
class SavedState:
    """One checkpoint of a run, examined."""

    checkpoint: Checkpoint
    healthy: bool = True
    reason: str = ""
    written: float | None = None
    """When the file was last changed, in seconds since 1970."""
    probed: bool = False
    dead: str | None = None
    """What the user's own probe found wrong with it."""

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def step(self) -> int | None:
        return self.checkpoint.step

    @property
    def step_words(self) -> str:
        return "step not known" if self.step is None else f"step {self.step}"

    @property
    def fit(self) -> bool:
        """Nothing was found that speaks against training from it."""
        return self.healthy and self.dead is None


@dataclass(frozen=True, slots=True)
class FailureWindow:
    """From the first to the last bad step of a log."""

    log: str
    line: int
    series: str
    first: float
    last: float
    to_end: bool
    counted: bool = True  # the log names its steps; else these are numbers of records
    grew_from: float | None = None
    """Since when the loss or norm had been growing, up to the failure."""
    over: bool = False
    """After it the run was finite for so long that it can be said to have come back."""

    @property
    def words(self) -> str:
        unit = "step" if self.counted else "record"
        if self.last == self.first:
            return f"{unit} {self.first:g}"
        return f"{unit} {self.first:g} to {self.last:g}" + (", the end of the log" if self.to_end else "")


@dataclass(slots=True)
class ProjectRun:
    """One run: a folder with logs and checkpoints."""

    folder: str
    logs: list[Log] = field(default_factory=list)
    saved: list[SavedState] = field(default_factory=list)
    """In the order of their steps."""
    configs: list[str] = field(default_factory=list)
    """The configurations that are its own; empty where that is not known."""
    rates: list[RateClaim] = field(default_factory=list)
    precisions: list[PrecisionClaim] = field(default_factory=list)
    window: FailureWindow | None = None

    @property
    def last_step(self) -> float | None:
        return max((log.last_step for log in self.logs if log.last_step is not None), default=None)

    def outside_failure(self, saved: SavedState) -> bool | None:
        """Written before the failure, or after the run had come back from it; None where that is not known."""
        if self.window is None:
            return True
        if saved.step is None or not self.window.counted:
            return None
        return saved.step < self.window.first or (self.window.over and saved.step > self.window.last)

    def grown(self, saved: SavedState) -> bool:
        """Written before the failure, but while the run was already growing towards it."""
        grew = self.window.grew_from if self.window is not None else None
        if self.window is None or grew is None or saved.step is None:
            return False
        return grew < saved.step < self.window.first

    def last_good(self) -> SavedState | None:
        """The newest checkpoint that is fit to train from and was not written during the failure.

        Where the run had been growing towards it, the newest from before that; else the one least grown.
        """
        fit = [
            saved
            for saved in self.saved
            if saved.fit
            and (self.outside_failure(saved) or (saved.probed and self.outside_failure(saved) is None))
        ]
        quiet = [saved for saved in fit if not self.grown(saved)]
        if quiet:
            return quiet[-1]
        return fit[0] if fit else None

    def failed_at_once(self, saved: SavedState) -> bool:
        """The first bad step began with the very weights that were saved."""
        return (
            self.window is not None
            and self.window.counted
            and saved.step is not None
            and 0 < self.window.first - saved.step <= 1
        )

    def saved_in_failure(self) -> list[SavedState]:
        """Those that look healthy and were written while the run was failing."""
        return [saved for saved in self.saved if saved.healthy and self.outside_failure(saved) is False]


@dataclass(slots=True)
class Project:
    """Everything that is known about a folder, for the rules that compare."""

    root: str
    runs: list[ProjectRun] = field(default_factory=list)
    precisions: list[PrecisionClaim] = field(default_factory=list)
    """What configurations, launchers and sources say, of whatever run."""
