"""GuardedRun: the training under guard, and what the parts of the guard share to watch it and to bring it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from stayfinite.guarding.arguments import new_run_dir, own_run_dir
from stayfinite.guarding.foresight import Foresight
from stayfinite.guarding.health import Health
from stayfinite.guarding.probe import HealthProbe
from stayfinite.guarding.reporter import RunReporter
from stayfinite.recover import Policy, consensus
from stayfinite.recover.plan import Plan
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.state import TrainingState
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
        quiet: bool,
    ) -> None:
        self.state, self.policy = state, policy
        self.device = next(iter(state.parameter_names)).device
        self.folder = own_run_dir(Path(run_dir) if run_dir is not None else new_run_dir(), consensus.rank())
        self.reporter = RunReporter(self.folder, self.device, listeners, quiet=quiet or consensus.rank() > 0)
        weakref.finalize(self, self.reporter.close)
        self.watcher = Watcher(state.parameter_names)
        self.recovery = Recovery(state, policy, plan, self.reporter.tell)
        self.health = Health(state)
        self.probe = HealthProbe(probe, state, self.reporter)
        self.foresight = Foresight(
            state.models,
            self.reporter.note,
            several_ranks=consensus.world_size() > 1,
            scale_floor=policy.scale_floor,
        )
        weakref.finalize(self, self.foresight.close)
        self.reporter.note("start", environment=environment(self.device), state_bytes=state.nbytes())

    def numbers_of(self, optimizers: Sequence[Optimizer]) -> list[int]:
        """The places of these optimizers among all of the run's."""
        return [self.state.optimizers.index(optimizer) for optimizer in optimizers]

    def any_rank(self, flag: bool) -> bool:
        """Is it so on any rank? The same answer on all of them, and they must all ask."""
        return consensus.any_rank(flag, self.device)
