"""StepOwner: the one owner of a step, from its first forward pass until it is applied, refused or abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.guarding.attempt import Attempt, Outcome, StepResult, largest_rate
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.redraw import Redraw
from stayfinite.guarding.run import GuardedRun
from stayfinite.hooks.interrupts import interrupts_pass, interrupts_wait
from stayfinite.recover.ranks import rank, world_size
from stayfinite.recover.rng import RngState
from stayfinite.watch.losses import Loss, as_loss, require_gradient, split_aux
from stayfinite.watch.risk import bad_settings, update_may_break
from stayfinite.watch.verdict import Marks, StepVerdict
from stayfinite.watch.watcher import Call, Trouble, Window

_DANGEROUS_NORM = 1e15
"""Gradients this large are finite, but their squares may not be: the update is made with a copy at hand."""


class NoGradients(ValueError):
    """Nothing to make an update of, on any rank."""

    def __init__(self) -> None:
        super().__init__(
            "no parameter has a gradient after backward: the loss does not depend on the parameters the "
            "optimizer holds. Look for .detach(), frozen layers, or an optimizer of another model."
        )


class BadEvaluation(Exception):
    """The loss or the gradients that an optimizer asked for are bad, and it has changed nothing yet."""


class StepOwner:
    """Holds the micro-batches of the next update, and the transaction that can undo them."""

    def __init__(self, run: GuardedRun, audit: Audit, clip_norm: float | None, accumulate: int) -> None:
        self._run, self._audit = run, audit
        self._watcher, self._recovery = run.watcher, run.recovery
        self.clip_norm, self.accumulate = clip_norm, accumulate
        self._window: Window | None = None
        self.aux: Any = None
        self._stepped: set[int] = set()  # optimizers whose first update went well
        self._redraw = Redraw()

    # -- gather: losses, then gradients

    @property
    def window(self) -> Window | None:
        """The micro-batches of the next update; None between two steps."""
        return self._window

    @window.setter
    def window(self, window: Window | None) -> None:
        self._window = window
        if window is None:
            self._redraw.step_ends()
        self._run.observers.ownership.step_in = threading.get_ident() if window is not None else None

    def last_update(self) -> float | None:
        """How far the run's last update went: no step comes after it to record that."""
        return self._watcher.last_update()

    @property
    def accumulating(self) -> bool:
        """Some micro-batches of the next update are there."""
        return self.window is not None and bool(self.window.losses)

    def open_window(self, *, has_begun: bool = False) -> Window:
        """Begin the transaction of the next update, if it has not begun."""
        if self.window is None:
            if not has_begun:
                self._recovery.transaction.begin()
            self.window = Window()
            self._redraw.step_begins()
            self._run.foresight.begin(self._run.reporter.step)
        return self.window

    def rest(self) -> None:
        """No forward pass of this window is to come: the loop asks for its next batch, or the guard is closed."""
        self._redraw.step_ends()

    def put_back_random_numbers(self, began: RngState | None, window: Window) -> None:
        """Its step is refused: go on with the numbers it began with, or with those behind the draw of its batch."""
        if self._run.policy.rng_on_skip == "restore":
            numbers = self._redraw.refused(began, window)
            if numbers is not None:
                numbers.restore()

    def abandon(self, optimizers: Sequence[Optimizer] = ()) -> None:
        """The user's code raised: leave no half-done step behind."""
        self._run.foresight.abandoned()
        if self.window is not None:
            self._recovery.transaction.undo(restore_rng=False)
            self.window = None
        self._recovery.scaling.abandon(optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)

    def forward_backward(self, call: Callable[[], Any], leave_out: Collection[str] = ()) -> Loss:
        """Compute the loss, without some of its components if need be, and its gradients."""
        value, self.aux = split_aux(call())
        loss = as_loss(value, leave_out)
        require_gradient(loss.total)
        trained = loss.total / self.accumulate if self.accumulate > 1 else loss.total
        self._recovery.scaling.scaled(trained).backward()  # type: ignore[no-untyped-call]
        return Loss(
            loss.total.detach(), {name: part.detach() for name, part in loss.components.items()}, loss.summed
        )

    def compute_again_without(self, bad: list[str], attempt: Attempt) -> None:
        """An undone step's losses and gradients once more, without their bad components."""
        window = self.open_window()
        window.batches, window.calls = attempt.window.batches, attempt.window.calls
        window.left_out = bad
        for call in window.calls:
            window.losses.append(self.forward_backward(call, leave_out=bad))

    def gather(
        self,
        optimizers: list[Optimizer],
        step: Callable[[], Any],
        beside: Sequence[Optimizer] = (),
        losses: Sequence[Loss] | None = None,
        *,
        update_was_made: bool = False,
    ) -> Attempt:
        """Read the gradients, once and raw, and collect the step's numbers on the device.

        `beside`: optimizers that the same losses reached. Their gradients must be finite too.
        """
        window, state, scaling = self.open_window(), self._run.state, self._recovery.scaling
        self._audit.forward_was_seen()
        scaling.unscale(optimizers)
        reading = window.reading or self._watcher.read(state.held_by(optimizers), _scale_still_in(optimizers))
        if not reading.gradients and not self._run.ranks.together:
            raise NoGradients
        vitals = self._run.foresight.gathered(
            optimizers, self._run.reporter.step, update_was_made=update_was_made
        )
        together = self._run.ranks.together
        # the whole norm rides on the ranks' one exchange
        part = reading.own_part(world_size()) if together else None
        norm, others = reading.total if part is None else part, None
        if beside and window.reading is None:
            others = self._watcher.read(state.held_by(list(beside)))
            if others.gradients:
                norm = norm + torch.where(torch.isfinite(others.total), 0.0, torch.nan).to(norm.device)
        group = [*optimizers, *beside]
        wrong = bad_settings(optimizers)
        if wrong:  # every rank must hear of it, and the norm is what they hear
            norm = torch.full_like(norm, torch.nan)
        seen = window.losses if losses is None else losses
        scale = scaling.scale(self._run.device) if scaling.on else self._run.observers.scalers.scale()
        any_gradients = bool(reading.gradients or (others and others.gradients))
        marks = Marks(any_gradients, bool(wrong), reading.is_half, is_part=part is not None)
        norm = norm if reading.gradients else norm.to(self._run.device)
        exchange = self._run.ranks.gathering()
        numbers = self._watcher.numbers(
            window, seen, norm, scale, exchange, marks, vitals, update_was_made=update_was_made
        )
        rates = [float(group["lr"]) for o in state.optimizers for group in o.param_groups if "lr" in group]
        return Attempt(
            window,
            reading,
            optimizers,
            step,
            rates,
            numbers,
            group,
            others,
            clip=self.clip,
            bad_settings=wrong,
            rate=largest_rate(optimizers),
        )

    # -- look, then update

    def make(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> Outcome:
        """All gradients of the window are there: look at them before anything changes, then let `step` change it."""
        outcome = self.look(self.gather(optimizers, step))
        return outcome if outcome.trouble else self.apply(outcome)

    def look(self, attempt: Attempt) -> Outcome:
        """What the gradients and losses of an update that may follow are worth. Nothing has changed yet."""
        verdict = attempt.numbers.verdict()
        if not verdict.has_gradients:
            raise NoGradients
        if self._run.ranks.apart:
            verdict.loss = None  # this rank's own; the averaged gradients say the same to all of them
        self._recovery.scaling.saw(verdict.scale)
        attempt.norm = self._norm(attempt, verdict)
        if attempt.beside is not None and not verdict.norm_is_finite:
            self._recovery.scaling.mark_overflow(attempt.optimizers)
        if attempt.bad_settings or verdict.settings_are_bad:
            verdict.grad_norm = float(attempt.reading.total)
            return Outcome(attempt, verdict, "setting")
        return Outcome(attempt, verdict, self._watcher.trouble(verdict) or self._spike(verdict))

    def apply(self, outcome: Outcome) -> Outcome:
        """Clip and update; if the update makes parameters or moments bad, that is the trouble."""
        attempt, clip = outcome.attempt, self.clip
        if clip is not None:
            self._clip(attempt, clip)
        attempt.copied = self._is_risky(attempt) or (
            clip is None and outcome.verdict.grad_norm > _DANGEROUS_NORM
        )
        if attempt.copied:
            self._recovery.transaction.copy_before_update(attempt.group)
        return self._update(outcome, attempt.make_update)

    def apply_also(self, outcome: Outcome, optimizer: Optimizer, step: Callable[[], Any]) -> Outcome:
        """A further optimizer of the same decision makes its update."""
        if self.clip is not None:
            self._recovery.scaling.unscale([optimizer])
            self._watcher.read(self._run.state.held_by([optimizer])).clip(self.clip)
        attempt = outcome.attempt
        attempt.bad_settings = bad_settings([optimizer])
        if attempt.bad_settings:
            return replace(outcome, trouble="setting")
        attempt.optimizers.append(optimizer)
        attempt.rate = largest_rate(attempt.optimizers)
        return self._update(outcome, step, also=optimizer)

    def _update(self, outcome: Outcome, step: Callable[[], Any], *, also: Optimizer | None = None) -> Outcome:
        attempt = outcome.attempt
        attempt.made = attempt.copied
        try:
            with interrupts_wait():
                self._measure(attempt, step, also)
        except BaseException:
            self._take_back(attempt)
            raise
        if attempt.copied and self._run.ranks.any(not self._run.health.after_update()):
            return replace(outcome, trouble="update")
        self._stepped.update(id(optimizer) for optimizer in attempt.optimizers)
        if attempt.copied and not self._is_risky(attempt):
            self._recovery.transaction.drop_copy(attempt.group)
        return outcome

    def _measure(self, attempt: Attempt, step: Callable[[], Any], also: Optimizer | None = None) -> None:
        """How far it moves the weights that it trains; `also`: a further update of the same step."""
        theirs = attempt.optimizers if also is None else [also]
        self._watcher.measure(step, self._run.state.last_held_by(theirs), also=also is not None)

    def make_anyway(self, outcome: Outcome) -> Outcome:
        """Where nothing is refused: the update as the script asked for it."""
        self._measure(outcome.attempt, outcome.attempt.make_update)
        return replace(outcome, trouble=None)

    def _take_back(self, attempt: Attempt) -> None:
        """The optimizer raised in the middle of its update."""
        if attempt.copied:
            self._recovery.transaction.undo_update(attempt.group)
        else:
            with self._run.ranks.ignored():  # the others have made their update, and do not come
                self._go_back_alone()
        self.abandon(attempt.group)

    def _go_back_alone(self) -> None:
        last_good, tell = self._recovery.last_good, self._run.reporter.tell
        if last_good.available:
            good = self._recovery.go_back()
            tell("rollback", f"an update broke off half-way; the state is that of step {good} again")
        elif last_good.is_elsewhere:
            tell(
                "warning",
                f"an update broke off half-way on rank {rank()}, and the last good copy is with rank 0: what is "
                "trained is half updated here. Go on from a checkpoint.",
            )

    def _is_risky(self, attempt: Attempt) -> bool:
        """An update may be bad in itself, or break off; the first, which makes the optimizer's state, always may."""
        later = [each for each in attempt.group if each not in attempt.optimizers]
        return (
            self._audit.optimizer_is_risky
            or any(
                id(optimizer) not in self._stepped or update_may_break(optimizer)
                for optimizer in attempt.group
            )
            or bool(attempt.bad_settings or bad_settings(later))
        )

    @property
    def clip(self) -> float | None:
        """What gradients are clipped at now: as configured, or as the plan's stage says."""
        return self._recovery.staging.clip_norm(self.clip_norm)

    def _norm(self, attempt: Attempt, verdict: StepVerdict) -> Tensor | None:
        """The norm of all gradients in float32 where half could not hold it: 65504 is not where a norm ends."""
        reading = attempt.reading
        half = verdict.some_are_half or reading.is_half
        if verdict.norm_is_finite or not half or self._run.ranks.any(bool(attempt.culprits())):
            return None
        total = reading.norm_in_float32()
        verdict.grad_norm = float(total)
        return total

    def _spike(self, verdict: StepVerdict) -> Trouble | None:
        """A batch that makes loss and gradient norm jump is refused, unless the loss stays where it jumped to."""
        policy, reporter = self._run.policy, self._run.reporter
        if policy.spikes == "ignore" or not self._watcher.is_spike(verdict):
            return None
        if policy.spikes == "skip" and self._recovery.ladder.spikes_in_a_row < policy.max_spikes_in_a_row:
            return "spike"
        reporter.tell(
            "spike",
            f"step {reporter.step}: loss and gradient norm jump to {verdict.loss:.4g} and "
            f"{verdict.grad_norm:.4g}; the step is applied",
        )
        if policy.spikes == "skip":
            self._watcher.forget()  # three in a row are no spike but a new level
        return None

    def _clip(self, attempt: Attempt, clip: float) -> None:
        if attempt.window.reading is attempt.reading:  # the loop has clipped since that was read
            self._watcher.read(self._run.state.held_by(attempt.optimizers)).clip(clip)
        else:
            attempt.reading.clip(clip, attempt.norm)

    def applied(self, outcome: Outcome) -> StepResult:
        """The update was made and stays: its numbers are now part of what is normal."""
        attempt, verdict = outcome.attempt, outcome.verdict
        self._watcher.learn(verdict)
        who = self._run.numbers_of(attempt.optimizers)
        self._recovery.ladder.success(who, whole=not attempt.window.left_out)
        self._recovery.staging.applied(verdict.loss, verdict.grad_norm)
        self.window = None
        self._redraw.applied()
        self._run.foresight.applied(self._run.reporter.step, verdict)
        counters = self._recovery.ladder.counters
        return self._run.reporter.of_step(
            verdict,
            attempt.rates,
            attempt.window.started,
            counters,
            "none",
            applied=True,
            who=who,
            rate=attempt.rate,
            stepped=self._run.observers.optimizers.find(attempt.optimizers[0]).stepped,
        )

    # -- optimizers that evaluate the loss themselves

    def make_with_closure(self, optimizers: list[Optimizer], call: Call) -> Outcome:
        """Give the optimizer what it needs to evaluate the step function as often as it likes."""
        optimizer, window = optimizers[0], self.open_window()
        if self.accumulate > 1 or self._recovery.scaling.on or len(optimizers) > 1:
            raise ValueError(
                f"{type(optimizer).__name__} evaluates the loss itself: it cannot be combined with accumulation, "
                "a scaler or a second optimizer in one step"
            )

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = self.forward_backward(call)
            window.losses.append(loss)
            if len(window.losses) == 1:  # nothing has changed yet
                self.look_at_evaluation(optimizer)
            if self.clip is not None:
                self._watcher.read(self._run.state.held_by(optimizers)).clip(self.clip)
            return loss.total

        return self.make_then_look(optimizers, lambda: optimizer.step(closure))  # type: ignore[arg-type]

    def look_at_evaluation(self, optimizer: Optimizer) -> None:
        """In the middle of an optimizer's step: end it if the loss or gradients that it was given are bad."""
        reading = self._watcher.read(self._run.state.held_by([optimizer]))
        total = reading.norm_in_float32() if reading.is_half else reading.total
        losses = [loss.total.float().to(total.device) for loss in (self.window.losses if self.window else [])]
        if reading.gradients and not bool(torch.isfinite(torch.stack([total.float(), *losses])).all()):
            raise BadEvaluation

    def make_then_look(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> Outcome:
        """Copy, let the optimizer run, and look at what it made: there are no gradients to look at before."""
        window, transaction = self.open_window(), self._recovery.transaction
        transaction.copy_before_update(optimizers)
        bad = False
        try:
            with interrupts_pass():  # evaluations may take long, and there is a copy
                self._watcher.measure(step, self._run.state.held_by(optimizers))
        except BadEvaluation:
            attempt = self.gather(optimizers, step)
            attempt.copied = attempt.made = True
            return self.look(attempt)
        except BaseException as error:
            # A line search that is given NaN raises whatever comes of it; the loss is what was wrong.
            bad = isinstance(error, Exception) and any(
                not torch.isfinite(loss.total) for loss in window.losses
            )
            if not bad:
                transaction.undo_update(optimizers)
                self.abandon(optimizers)
                raise
        bad = self._run.ranks.any(bad or not self._run.health.after_update())
        del window.losses[1:]  # the loss before the update; the line search's own evaluations are not steps
        attempt = self.gather(optimizers, step, update_was_made=True)
        attempt.copied = attempt.made = True
        verdict = attempt.numbers.verdict()
        good = not bad and verdict.loss_is_finite
        return Outcome(attempt, verdict, None if good else "update")


def _scale_still_in(optimizers: Sequence[Optimizer]) -> Tensor | None:
    """A GradScaler leaves it to a fused optimizer to take the scale out of the gradients, and tells it here."""
    scales = [getattr(optimizer, "grad_scale", None) for optimizer in optimizers]
    return next((scale for scale in scales if isinstance(scale, Tensor)), None)
