"""Updates: from the gradients of a window to one update, or to the reason why there must be none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stayfinite.guarding.attempt import Attempt, Outcome, StepResult
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.run import GuardedRun
from stayfinite.recover import consensus
from stayfinite.watch.losses import Loss, as_loss, require_gradient
from stayfinite.watch.verdict import Verdict
from stayfinite.watch.watcher import Trouble, Window

_DANGEROUS_NORM = 1e15
"""Gradients this large are finite, but their squares may not be: the update is made with a copy at hand."""


class Updates:
    """Owns the window: the micro-batches of the next update, and the transaction that can undo them."""

    def __init__(self, run: GuardedRun, audit: Audit, clip_norm: float | None, accumulate: int) -> None:
        self._run, self._audit = run, audit
        self._watcher, self._recovery = run.watcher, run.recovery
        self.clip_norm, self.accumulate = clip_norm, accumulate
        self.window: Window | None = None

    # -- gather: losses, then gradients

    @property
    def accumulating(self) -> bool:
        """Some micro-batches of the next update are there."""
        return self.window is not None and bool(self.window.losses)

    def open_window(self) -> Window:
        """Begin the transaction of the next update, if it has not begun."""
        if self.window is None:
            self._recovery.transaction.begin()
            self.window = Window()
        return self.window

    def abandon(self) -> None:
        """The user's code raised: leave no half-done step behind."""
        self._recovery.transaction.undo(restore_rng=False)
        self.window = None

    def forward_backward(self, fn: Callable[[], Any], leave_out: Collection[str] = ()) -> Loss:
        """Compute the loss, without some of its components if need be, and its gradients."""
        loss = as_loss(fn(), leave_out)
        require_gradient(loss.total)
        trained = loss.total / self.accumulate if self.accumulate > 1 else loss.total
        self._recovery.scaling.scaled(trained).backward()  # type: ignore[no-untyped-call]
        return Loss(
            loss.total.detach(), {name: part.detach() for name, part in loss.components.items()}, loss.summed
        )

    def compute_again_without(self, bad: list[str], attempt: Attempt) -> None:
        """An undone step's losses and gradients once more, without their bad components."""
        window = self.open_window()
        window.batches, window.functions = attempt.window.batches, attempt.window.functions
        window.left_out = bad
        for fn in window.functions:
            window.losses.append(self.forward_backward(fn, leave_out=bad))

    def gather(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> Attempt:
        """Read the gradients, once and raw, and collect the step's numbers on the device."""
        window, state, scaling = self.open_window(), self._run.state, self._recovery.scaling
        self._audit.forward_was_seen()
        scaling.unscale(optimizers)
        reading = window.reading or self._watcher.read(state.held_by(optimizers))
        if not reading.gradients:
            self.abandon()
            raise ValueError(
                "no parameter has a gradient after backward: the loss does not depend on the parameters the "
                "optimizer holds. Look for .detach(), frozen layers, or an optimizer of another model."
            )
        scale = scaling.scale(self._run.device)
        numbers = self._watcher.numbers(window, reading, scale, consensus.gathering())
        rates = [float(group["lr"]) for o in state.optimizers for group in o.param_groups if "lr" in group]
        return Attempt(window, reading, optimizers, step, rates, numbers)

    # -- make: look, clip, update

    def make(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> Outcome:
        """All gradients of the window are there: look at them before anything changes, then let `step` change it."""
        attempt = self.gather(optimizers, step)
        verdict = attempt.numbers.verdict()
        total = self._norm(attempt, verdict)
        trouble = self._watcher.trouble(verdict) or self._spike(verdict)
        if trouble is None:
            clip = self.clip
            if clip is not None:
                self._clip(attempt, clip, total)
            if self._audit.optimizer_is_risky or (clip is None and verdict.grad_norm > _DANGEROUS_NORM):
                trouble = None if self._finite_after(optimizers, step) else "update"
            else:
                self._watcher.measure(step)
        return Outcome(attempt, verdict, trouble)

    @property
    def clip(self) -> float | None:
        """What gradients are clipped at now: as configured, or as the plan's stage says."""
        return self._recovery.staging.clip_norm(self.clip_norm)

    def _norm(self, attempt: Attempt, verdict: Verdict) -> Tensor:
        """The norm of all gradients; in float32 if half could not hold it: 65504 is not where a norm ends."""
        reading = attempt.reading
        if verdict.norm_is_finite or not reading.is_half or self._run.any_rank(bool(reading.culprits())):
            return reading.total
        total = reading.norm_in_float32()
        verdict.grad_norm = float(total)
        return total

    def _spike(self, verdict: Verdict) -> Trouble | None:
        """A batch that makes loss and gradient norm jump is refused, unless the loss stays where it jumped to."""
        policy, telling = self._run.policy, self._run.telling
        if policy.spikes == "ignore" or not self._watcher.is_spike(verdict):
            return None
        if policy.spikes == "skip" and self._recovery.ladder.spikes_in_a_row < policy.max_spikes_in_a_row:
            return "spike"
        telling.tell(
            "spike",
            f"step {telling.step}: loss and gradient norm jump to {verdict.loss:.4g} and "
            f"{verdict.grad_norm:.4g}; the step is applied",
        )
        if policy.spikes == "skip":
            self._watcher.forget()  # three in a row are no spike but a new level
        return None

    def _clip(self, attempt: Attempt, clip: float, total: Tensor) -> None:
        if attempt.window.reading is attempt.reading:  # the loop has clipped since that was read
            self._watcher.read(self._run.state.held_by(attempt.optimizers)).clip(clip)
        else:
            attempt.reading.clip(clip, total)

    def _finite_after(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> bool:
        """Make the update with a copy at hand; False if it made a parameter or a moment NaN or Inf."""
        self._recovery.transaction.copy_before_update(optimizers)
        self._watcher.measure(step)
        return not self._run.any_rank(not self._run.health.after_update())

    def applied(self, outcome: Outcome) -> StepResult:
        """The update was made and stays: its numbers are now part of what is normal."""
        attempt, verdict = outcome.attempt, outcome.verdict
        self._watcher.learn(verdict)
        self._recovery.ladder.success(whole=not attempt.window.left_out)
        self._recovery.staging.applied(verdict.loss, verdict.grad_norm)
        self.window = None
        counters = self._recovery.ladder.counters
        return self._run.telling.of_step(attempt, verdict, counters, "none", applied=True)

    # -- optimizers that evaluate the loss themselves

    def make_with_closure(self, optimizers: list[Optimizer], fn: Callable[[], Any]) -> Outcome:
        """Give the optimizer what it needs to evaluate `fn` as often as it likes."""
        optimizer, window = optimizers[0], self.open_window()
        if self.accumulate > 1 or self._recovery.scaling.on or len(optimizers) > 1:
            raise ValueError(
                f"{type(optimizer).__name__} evaluates the loss itself: it cannot be combined with accumulation, "
                "a scaler or a second optimizer in one step"
            )

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = self.forward_backward(fn)
            window.losses.append(loss)
            if self.clip is not None:
                self._watcher.read(self._run.state.held_by(optimizers)).clip(self.clip)
            return loss.total

        return self.make_then_look(optimizers, lambda: optimizer.step(closure))  # type: ignore[arg-type]

    def make_then_look(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> Outcome:
        """Copy, let the optimizer run, and look at what it made: there are no gradients to look at before."""
        window = self.open_window()
        finite = self._finite_after(optimizers, step)
        del window.losses[1:]  # the loss before the update; the line search's own evaluations are not steps
        attempt = self.gather(optimizers, step)
        verdict = attempt.numbers.verdict()
        return Outcome(attempt, verdict, None if finite and verdict.loss_is_finite else "update")
