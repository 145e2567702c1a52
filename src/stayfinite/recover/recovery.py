"""Recovery: the transaction, the ladder and the last good copy, together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.optim import Optimizer

from stayfinite.hooks.interrupts import interrupts_wait
from stayfinite.recover.ladder import Ladder
from stayfinite.recover.lastgood import LastGood
from stayfinite.recover.plan import Plan, Staging, Tell
from stayfinite.recover.policy import Policy
from stayfinite.recover.ranks import Ranks
from stayfinite.recover.rates import lower_rates, rates_of
from stayfinite.recover.replicated_copy import Slot
from stayfinite.recover.scaling import Scaling
from stayfinite.recover.state import TrainingState
from stayfinite.recover.transaction import Transaction

_MANY_UPDATES = 100
"""As many as lie between two regular copies: by then there is a newer one to go back to."""

_HALF_A_RUNG = 0.5


class Recovery:
    """What a guard has at hand to undo a step and to bring a run back."""

    def __init__(
        self, state: TrainingState, policy: Policy, plan: Plan | None, tell: Tell, ranks: Ranks
    ) -> None:
        self._state = state
        self._policy = policy
        self.transaction = Transaction(state)
        self.ladder = Ladder(policy)
        self.ranks = ranks
        self.last_good = LastGood(state, ranks)
        self.staging = Staging(plan, state, tell)
        self.scaling = Scaling(state.scaler, policy.scale_floor)
        self._lowered_in_copy = 0.0  # rungs of the rates in the last good copy

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """All of the run's."""
        return self._state.optimizers

    @property
    def lower_by(self) -> float:
        """What a rollback multiplies every rate with."""
        return self._policy.lower_lr_by

    def keep(self, step: int, replicated: Sequence[Slot] = ()) -> None:
        """The state was verified: it is now the last good one. `replicated`: what is alike on all ranks."""
        self.last_good.keep(step, self.ladder.counters, replicated)
        self._lowered_in_copy = self.ladder.lowered
        self.staging.remember()

    def undo(self, optimizers: Sequence[Optimizer], *, update_was_made: bool) -> None:
        """Leave everything as it was before the step; random numbers are the step's owner's to put back."""
        if update_was_made:
            self.transaction.undo_update(optimizers)
        self.transaction.undo(restore_rng=False)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)

    @interrupts_wait()
    def lower_rates(self) -> str:
        """One rung up: every rate, and every schedule's memory of it, times the policy's factor."""
        self.ladder.counters.lowerings += 1
        self.ladder.lowered += 1
        lower_rates(self._state.optimizers, self._state.schedulers, self._policy.lower_lr_by)
        return f"learning rates times {self._policy.lower_lr_by:g}: now {self.rates()}"

    @interrupts_wait()
    def roll_back(self, step: int, *, grew: bool = False, early: bool = False) -> str:
        """Back to the last good copy, at a lower rate than the one that led here.

        `early`: at what was foretold. Of a signal that stands near its limit whatever the rate, it is lowered by half a
        rung only.
        `grew`: what failed had grown since the copy. Growth that took so many updates takes twice as many at half of
        the rate: it is lowered until it would take many, and by no more than the policy lowers at all. Updates of a
        warm-up count by their share of the peak, which is still to come.
        """
        warm = self._share_of_peak()
        good = self.go_back()
        warm = (warm + self._share_of_peak()) / 2
        lost = step - good
        counters = self.ladder.counters
        counters.rollbacks += 1
        counters.foretold += early and self.ladder.may_go_back_early  # else it was the ladder's
        since = counters.applied - self.last_good.applied
        counters.rolled_back += since
        # going back once more loses only what is applied from here on
        self.last_good.applied = counters.applied
        # the same state at the same learning rate would end in the same failure
        if self._policy.max_lowerings:
            rungs = self._rungs(since * warm) if grew else 1
            counters.lowerings += rungs
            self.ladder.lowered += _HALF_A_RUNG if early and not grew else rungs
        again = self.ladder.lowered - self._lowered_in_copy
        lower_rates(self._state.optimizers, self._state.schedulers, self._policy.lower_lr_by**again)
        passed = "the batch since is" if lost == 1 else f"the {lost} batches since are"
        return f"rolled back to the state of step {good}; {passed} passed over; learning rate {self.rates()}"

    def _share_of_peak(self) -> float:
        """How far the schedules let the rates go now; 1 without one."""
        rates = [rate for rate in rates_of([o.param_groups for o in self._state.optimizers]) if rate.peak > 0]
        return min(1.0, sum(rate.lr / rate.peak for rate in rates) / len(rates)) if rates else 1.0

    def _rungs(self, updates: float) -> int:
        """How often the rate must be lowered so that a growth of so many updates takes many."""
        needed = math.log(max(updates, 1) / _MANY_UPDATES) / math.log(self._policy.lower_lr_by)
        return max(1, min(math.ceil(needed), self._policy.max_lowerings))

    @interrupts_wait()
    def go_back(self) -> int:
        """Put the last good state back, and the stage of the plan it was in; gives its step."""
        good = self.last_good.restore()
        self.staging.go_back()
        return good

    def rates(self) -> str:
        """All groups' rates, for people."""
        return ", ".join(str(rate) for rate in rates_of([o.param_groups for o in self._state.optimizers]))
