"""GuardedRun: the training under guard, and what the parts of the guard share to watch it and to bring it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from stayfinite.findings.process_mark import own_mark
from stayfinite.guarding.arguments import new_run_dir, own_run_dir
from stayfinite.guarding.foresight import Foresight
from stayfinite.guarding.health import Health
from stayfinite.guarding.probe import HealthProbe
from stayfinite.guarding.reporter import RunReporter
from stayfinite.loggers.logger import Logger
from stayfinite.observers.history import here
from stayfinite.observers.run_observers import RunObservers
from stayfinite.recover import Policy
from stayfinite.recover.plan import Plan
from stayfinite.recover.ranks import Ranks, rank, said_by_the_first, world_size
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.state import TrainingState
from stayfinite.report.progress import Says
from stayfinite.watch.environment import environment
from stayfinite.watch.watcher import Watcher


class GuardedRun:
    """Lives as long as any part of the guard does; its record is closed with it."""

    def __init__(
        self,
        state: TrainingState,
        policy: Policy,
        plan: Plan | None,
        probe: Callable[[], Any] | None,
        run_dir: str | Path | None,
        listeners: Sequence[Any],
        *,
        says: Says,
        observers: RunObservers | None = None,
        refuses: bool = True,
    ) -> None:
        """`observers` of a script that is watched as a whole; else the run has its own. `refuses`: False only looks."""
        self.state, self.policy, self.refuses = state, policy, refuses
        self.device = next(iter(state.parameter_names)).device
        where = here()
        name = f"{where.file}:{where.line}" if observers is None else "script"  # the same on every rank
        if run_dir is None:
            run_dir = said_by_the_first(f"folder/{name}", lambda: str(new_run_dir()))
        self.folder = own_run_dir(Path(run_dir), rank())
        self.observers = observers or RunObservers.of_guard(
            state, state.schedulers, state.averages_of(state.optimizers)
        )
        self.observers.history.guarded = True
        self.reporter = RunReporter(
            self.folder if refuses else None,
            self.device,
            self.observers.history,
            [one for one in listeners if rank() == 0 or not isinstance(one, Logger)],
            says=says if rank() == 0 else "nothing",
        )
        self.ranks = Ranks(self.device, state.models.values(), name, self.reporter.tell)
        if observers is None:
            weakref.finalize(self, self.observers.remove)
        weakref.finalize(self, self.reporter.close)
        self.watcher = Watcher(state.parameter_names)
        self.recovery = Recovery(state, policy, plan, self.reporter.tell, self.ranks)
        self.health = Health(state)
        self.probe = HealthProbe(probe, state, self.reporter)
        self.foresight = Foresight(
            state.models, self.reporter.note, several_ranks=world_size() > 1, scale_floor=policy.scale_floor
        )
        weakref.finalize(self, self.foresight.close)
        self.reporter.note(
            "start", environment=environment(self.device), state_bytes=state.nbytes(), process=own_mark()
        )

    def numbers_of(self, optimizers: Sequence[Optimizer]) -> list[int]:
        """The places of these optimizers among all of the run's."""
        return [self.state.optimizers.index(optimizer) for optimizer in optimizers]
