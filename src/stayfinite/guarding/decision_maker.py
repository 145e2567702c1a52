"""DecisionMaker: one loss, one decision. Which backward passes an update answers, and for which optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.run_record import Place
from stayfinite.guarding.attempt import Outcome, Refusal
from stayfinite.guarding.cleared_gradients import ClearedGradients
from stayfinite.guarding.next_forward import NextForward
from stayfinite.guarding.refusal_handler import RefusalHandler
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_follower import StepFollower
from stayfinite.guarding.step_owner import StepOwner
from stayfinite.hooks.interrupts import interrupts_pass
from stayfinite.recover import Action
from stayfinite.recover.aftermath import Aftermath
from stayfinite.recover.position import DataPosition
from stayfinite.watch.intercept import Marks, gradient_marks, has_gradients, reached
from stayfinite.watch.losses import Loss, as_loss


@dataclass(slots=True)
class _Backward:
    """A backward pass that no update has answered yet."""

    loss: Loss
    optimizers: list[Optimizer]  # whose parameters it reached
    unscaled: Place | None = None  # its line, if no scaler has scaled the loss where there is one


@dataclass(slots=True)
class _Decision:
    """One answer to one or several losses, for all optimizers that they reached."""

    outcome: Outcome | None  # None: refused
    waiting: list[Optimizer] = field(default_factory=list)  # that have not asked for their step yet


class DecisionMaker:
    """Decides on the updates that a loop's body asks for, and takes back what follows a refused one in the body."""

    def __init__(
        self,
        run: GuardedRun,
        owner: StepOwner,
        refusal_handler: RefusalHandler,
        follower: StepFollower,
        position: DataPosition,
    ) -> None:
        self._run, self._owner, self._refusal_handler = run, owner, refusal_handler
        self._follower, self._position = follower, position
        self._aftermaths: list[Aftermath] = []
        self._cleared = ClearedGradients()
        self._undecided: list[_Backward] = []
        self._decision: _Decision | None = None
        self._next_forward = NextForward()  # waited for while a decision is open
        self._next_has_begun = False  # it came: the transaction is that of the next step
        self._batch: Any = None
        self._framework_step: Callable[[], Any] | None = None  # that runs now
        self.refusal: Refusal | None = None  # of this body: it is looked into when the body has ended
        self.trained = False  # the body has run a backward pass or an update
        self._begun = False  # a backward pass has begun that no update has answered
        # optimizers for which the body has asked for an update, and had its answer
        self._answered: set[int] = set()
        self._passes = self._passes_before = (
            0  # backward passes of this body; those that applied updates answered
        )

    def begin_body(self, batch: Any) -> None:
        self._batch = batch
        self.trained, self._answered = False, set()
        self._passes = self._passes_before = 0
        self._begun = bool(self._undecided)

    def begin_framework_step(self, again: Callable[[], Any], batch: Any) -> None:
        """A framework runs forward and backward pass of one micro-batch; `again` runs them once more."""
        if self._owner.accumulating:
            self._run.recovery.transaction.mark_batch()
        else:
            self._owner.window = None  # what was drawn at random since the last step is no part of this one
        window = self._owner.open_window()
        del window.batches[len(window.framework_steps) :]  # a loader may be ahead of what is trained on
        window.batches.append(batch)
        window.framework_steps.append(again)
        self._batch, self._framework_step = batch, again

    def note_evaluation(self, again: Callable[[], Any], batch: Any) -> None:
        """The same in the middle of an optimizer's step, which may evaluate it more than once."""
        window = self._owner.window
        if window is not None and not window.losses:
            window.batches, window.framework_steps = [batch], [again]

    def end_framework_step(self) -> None:
        self._framework_step = None

    def end_body(self) -> None:
        after_updates = not self._begun and self._run.recovery.transaction.buffers_were_written
        if not self.trained or after_updates:  # a forward pass that the body made nothing of
            self._refusal_handler.mend_buffers()
        if self._aftermaths:
            self._refusal_handler.settle_scale()
        self.put_back_aftermath()
        self._batch = None

    def abandon(self) -> None:
        """The loop was left before the last update of its batch: as if what it did for that had not begun."""
        waiting = any(id(optimizer) not in self._answered for optimizer in self._run.state.optimizers)
        if self._owner.window is not None and (self._begun or waiting):
            self._owner.abandon(self._run.state.optimizers if self._begun else ())
        self._owner.window = None
        self._undecided = []

    def skipped_by_scaler(self, optimizer: Optimizer, in_vain: Callable[[str, Action], None]) -> None:
        """The script's own scaler has refused this step: it is over."""
        self._refusal_handler.mend_buffers()
        window = self._owner.open_window()
        losses = [loss.total for loss in window.losses]
        self._undecided = []
        try:
            self._refusal_handler.skipped_by_scaler(optimizer, losses, window.started, in_vain)
        finally:  # also if the policy ends the run here
            self._owner.window = None
            self._go_on_in_body()

    @property
    def is_open(self) -> bool:
        """An update was decided on, and optimizers of the same losses have yet to ask for theirs."""
        return self._decision is not None and bool(self._decision.waiting)

    # -- what comes after a refusal in the same body

    def put_back_aftermath(self, optimizers: Sequence[Optimizer] | None = None) -> None:
        """Take back what was done to schedules and averages since their refusals: of these optimizers, or of all."""
        for aftermath in list(self._aftermaths):
            if optimizers is None or any(optimizer in aftermath.optimizers for optimizer in optimizers):
                aftermath.put_back()
                self._aftermaths.remove(aftermath)

    def saw_schedule(self, scheduler: Any, with_every_update: bool) -> None:
        """A schedule has moved on. Nobody knows whether anything follows that a refused update could end with."""
        if with_every_update:
            self.hold_aftermath()
        for aftermath in self._aftermaths if not with_every_update else ():
            aftermath.leave(scheduler)

    def hold_aftermath(self) -> None:
        """Take it back for now; more may follow."""
        for aftermath in self._aftermaths:
            aftermath.put_back()

    def settle_for_save(self) -> None:
        """For a save in the middle of a body: bring the state to what it will be when the body is over."""
        self.finish()
        self.hold_aftermath()
        self._run.recovery.scaling.settle_refusal(for_now=True)

    # -- backward passes

    def before_backward(self) -> Marks:
        self._begun = True
        self._cleared.drop()
        optimizers = self._run.state.optimizers
        marks = gradient_marks(optimizers)
        if self._undecided:
            self._drop_cleared([o for o, own in zip(optimizers, marks, strict=True) if not any(own)])
        self._finish_if_cleared()
        return marks

    def _finish_if_cleared(self) -> None:
        """Who was waited for has thrown away what it would have stepped with: nobody is to come any more."""
        if self.is_open and not any(map(has_gradients, self._decision.waiting if self._decision else ())):
            self.finish()

    def _forward_begins(self) -> None:
        """While a decision is open: this pass may be that of the next step already."""
        self._finish_if_cleared()
        if self.is_open:  # gradients may be thrown away after the forward pass as well as before it
            self._run.recovery.transaction.begin()
            self._next_has_begun = True

    def _drop_cleared(self, cleared: list[Optimizer]) -> None:
        """Losses whose gradients the body has thrown away are in no update."""
        gone = [b for b in self._undecided if all(o in cleared for o in b.optimizers)]
        window = self._owner.window
        if gone and window is not None:
            self._undecided = [b for b in self._undecided if b not in gone]
            window.losses = [loss for loss in window.losses if not any(loss is b.loss for b in gone)]

    def saw_backward(self, roots: Sequence[Tensor], before: Marks) -> bool:
        """A backward pass is over. One that reached none of our parameters is another model's: False."""
        optimizers = reached(self._run.state.optimizers, before)
        if not optimizers:
            return False
        self.finish()
        self.put_back_aftermath(optimizers)
        self.trained = True
        self._passes += 1
        loss = Loss(self._unscaled(roots), {})
        unscaled = self._run.observers.scalers.unscaled_backward(roots)
        self._undecided.append(_Backward(loss, optimizers, unscaled))
        window = self._owner.open_window()
        window.losses.append(loss)
        window.reading = None
        return True

    def _unscaled(self, roots: Sequence[Tensor]) -> Tensor:
        """The loss, as it was before a scaler multiplied it."""
        known = [self._run.observers.scalers.before_scaling(root) for root in roots]
        scale = self._run.recovery.scaling.scale(roots[0].device) if None in known else None
        parts = [
            before if before is not None else root.detach() if scale is None else root.detach() / scale
            for root, before in zip(roots, known, strict=True)
        ]
        if len(parts) == 1:
            return parts[0] if parts[0].dim() == 0 else parts[0].reshape(())
        return torch.stack([part.sum().float() for part in parts]).sum()

    # -- updates

    def concerns(self, optimizer: Optimizer) -> bool:
        """It has gradients, or is yet to hear that its losses were refused."""
        decision = self._decision
        if decision is not None and decision.outcome is None and optimizer in decision.waiting:
            return True
        with self.cleared_are_hidden():
            return has_gradients(optimizer)

    def cleared_are_hidden(self) -> AbstractContextManager[None]:
        """Zeros that are there to be read are no gradients."""
        return self._cleared.hidden()

    def decide(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        """Make the update, or do not: as was decided when another optimizer of the same losses stepped, or now."""
        with self.cleared_are_hidden():
            self._decide(optimizer, step)

    def _decide(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        self.trained = True
        decision = self._decision
        try:
            if decision is not None and optimizer in decision.waiting:
                decision.waiting.remove(optimizer)
                if decision.outcome is not None:
                    self._settle(self._owner.apply_also(decision.outcome, optimizer, step))
            else:
                self.finish()
                self._settle(self._look(optimizer, step))
        except BaseException:
            self._next_forward.stop()
            self._decision = None  # the update broke off, and was taken back
            raise
        if self._decision is not None and self._decision.outcome is None:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # no scheduler need warn of a skipped step
        if self._decision is not None and not self._decision.waiting:
            self.finish()
        elif self._decision is not None and self._decision.outcome is not None:
            self._next_forward.wait(self._forward_begins)

    def _look(self, optimizer: Optimizer, step: Callable[[], Any]) -> Outcome:
        """Judge the losses that reached this optimizer, for all optimizers that they reached."""
        ours = [backward for backward in self._undecided if optimizer in backward.optimizers]
        self._undecided = [backward for backward in self._undecided if backward not in ours]
        all_of_them = [o for backward in ours for o in backward.optimizers]
        beside = [o for o in self._run.state.optimizers if o is not optimizer and o in all_of_them]
        losses = [backward.loss for backward in ours] if ours else None
        self._run.observers.scalers.answers(optimizer, [backward.unscaled for backward in ours])
        outcome = self._owner.look(self._owner.gather([optimizer], step, beside, losses))
        self._decision = _Decision(outcome, beside)
        if not self._run.refuses:
            return self._owner.make_anyway(outcome)
        return outcome if outcome.trouble else self._owner.apply(outcome)

    def _settle(self, outcome: Outcome) -> None:
        """An update that is good stays; it is on record when all of its optimizers have stepped."""
        assert self._decision is not None
        self._position.waiting, self._begun = False, bool(self._undecided)
        self._answered.update(id(optimizer) for optimizer in outcome.attempt.group)
        if outcome.trouble is None:
            self._decision.outcome = outcome
            self._passes_before = self._passes
            return
        self._decision.outcome = None
        self._refuse(outcome)
        hold = self._run.policy.scheduler_on_skip == "hold"
        self._aftermaths.append(Aftermath(self._run.state, outcome.attempt.group, keep_scheduler=hold))
        self._go_on_in_body()

    def _refuse(self, outcome: Outcome) -> None:
        """Refuse, as `Guard.step` does; scaler, scheduler and averages are the body's own to advance."""
        if self._refusal_handler.is_back_off(outcome):
            self._refusal_handler.back_off(outcome)
            return
        self._follower.step_is_refused()
        if not outcome.attempt.window.framework_steps:  # their replay is of the refused step alone
            outcome.attempt.passes_before = self._passes_before
        with self._cleared.shown(outcome.attempt.group):
            refused = self._refusal_handler.undo(outcome)
        earlier, self.refusal = self.refusal, self._refusal_handler.answer(refused, outcome)
        if earlier is not None:  # several updates in one body: only the last can be replayed
            self._refusal_handler.conclude(earlier, None)

    @property
    def off_record(self) -> Outcome | None:
        """What was applied last, if it is not on record yet."""
        return self._decision.outcome if self._decision is not None else None

    def finish(self) -> None:
        """Nothing more belongs to the last decision: what was applied is on record now."""
        self._next_forward.stop()
        decision, self._decision = self._decision, None
        if decision is not None and decision.outcome is not None:
            self._follower.step_is_applied(decision.outcome.attempt)
            self._owner.applied(decision.outcome)
            self._go_on_in_body(has_begun=self._next_has_begun)
        self._next_has_begun = False

    def _go_on_in_body(self, *, has_begun: bool = False) -> None:
        """A second update in the same body is a transaction of its own, about the same batch."""
        window = self._owner.open_window(has_begun=has_begun)
        if self._batch is not None:
            window.batches.append(self._batch)
            if self._framework_step is not None:
                window.framework_steps.append(self._framework_step)

    def step_with_closure(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """An optimizer that evaluates the loss as often as it likes: what it made is looked at afterwards.

        What its first evaluation gave is looked at before it changes anything: forward and backward pass are not
        the optimizer's doing.
        """
        self.finish()
        self._cleared.drop()
        self.put_back_aftermath([optimizer])  # it reads its learning rate before it evaluates anything
        self.trained = True
        window, value = self._owner.open_window(), None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        versions = [p._version for p in parameters]

        def noting() -> Any:
            nonlocal value
            loss, first = closure(), not window.losses
            if loss is not None:
                window.losses.append(as_loss(torch.as_tensor(loss).detach()))
            if value is None:
                value = loss  # what step(closure) gives if it is ended here: loops call float() on it
            if first and self._run.refuses and [p._version for p in parameters] == versions:
                self._owner.look_at_evaluation(optimizer)
            return loss

        def run() -> None:
            nonlocal value
            value = step(noting)

        if self._run.refuses:
            outcome = self._owner.make_then_look([optimizer], run)
        else:
            with interrupts_pass():
                run()
            attempt = self._owner.gather([optimizer], run, update_was_made=True)
            outcome = replace(self._owner.look(attempt), trouble=None)
        self._undecided = []
        self._decision = _Decision(outcome)
        self._settle(outcome)
        self.finish()
        return value
