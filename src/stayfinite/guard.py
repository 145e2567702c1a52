"""Guard: watch every step, catch what is not finite, keep it out of the state, bring the run back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import Finding, TensorSummary
from stayfinite.findings.incident import ACTIONS
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.refused_step import RefusedStep
from stayfinite.guarding import facts
from stayfinite.guarding.arguments import check_arguments, new_run_dir, own_run_dir, unknown_schedule
from stayfinite.guarding.attempt import Attempt, Refusal, StepResult
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.health import Health
from stayfinite.guarding.leave_out import can_do_without
from stayfinite.guarding.locate import Replay, explain
from stayfinite.guarding.loop import WatchedLoop
from stayfinite.guarding.probe import HealthProbe
from stayfinite.guarding.telling import Telling
from stayfinite.guarding.unseen import Unseen
from stayfinite.guarding.upkeep import Intervals, Upkeep
from stayfinite.recover import CheckpointError, Policy, RunStopped, consensus
from stayfinite.recover.ladder import Counters
from stayfinite.recover.plan import Plan
from stayfinite.recover.recovery import Recovery
from stayfinite.recover.state import Models, TrainingState, update_average
from stayfinite.report.refusal import sentence
from stayfinite.watch.environment import environment
from stayfinite.watch.losses import Loss, as_loss, require_gradient
from stayfinite.watch.verdict import Verdict
from stayfinite.watch.watcher import Trouble, Watcher, Window

__all__ = ["Guard", "StepResult"]

Batch = TypeVar("Batch")

_DANGEROUS_NORM = 1e15
"""Gradients this large are finite, but their squares may not be: the update is made with a copy at hand."""


class Guard:
    """Guards a training run. Make it, then call `guard.step(fn)` or loop over `guard.watch(loader)`."""

    def __init__(
        self,
        model: Models,
        optimizer: Optimizer | Sequence[Optimizer],
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        clip_norm: float | None = None,
        run_dir: str | Path | None = None,
        policy: str | Policy = "default",
        *,
        accumulate: int = 1,
        sync: bool = True,
        locate: bool = True,
        scheduler_interval: str = "step",
        check_every: int = 100,
        snapshot_every: int = 100,
        save_every: int = 0,
        keep: int = 3,
        probe: Callable[[], Any] | None = None,
        plan: Plan | None = None,
        listeners: Sequence[Any] = (),
        quiet: bool = False,
    ) -> None:
        """
        model: the module that is trained; several (also a loss with buffers) as a list or dict.
        scheduler: advanced after every applied update; `scheduler_interval="epoch"` leaves that to you.
        ema: averages to protect; those with `update_parameters(model)` (torch's AveragedModel) or `update(model)`
            are updated after every applied update.
        accumulate: how many calls of `step` make one update.
        sync: False never waits for the device (fused optimizers only); verdicts come one step later.
        locate: follow a refused step once more, op by op, to name the line where it went wrong.
        check_every, snapshot_every: steps between looks at all state, and between copies to go back to.
        save_every, keep: steps between checkpoints in run_dir/snapshots (0: none), and how many stay (0: all).
        probe: gives a tensor, a number or a dict of named ones that must be finite (a forward pass on a fixed batch,
            the alphas of a layer). Called before every epoch of `watch`, before a copy to go back to is taken, before
            a save, after a restore and at the first refused step of a row; it leaves no trace.
        plan: stages that begin small and scale up when their criteria hold.
        listeners: callables or TensorBoard writers that get every record too.
        """
        self.policy = policy if isinstance(policy, Policy) else Policy.named(policy)
        self.state = TrainingState(model, optimizer, scheduler, scaler, ema)
        check_arguments(
            self.state,
            clip_norm,
            accumulate,
            sync,
            scheduler_interval,
            probe,
            check_every=check_every,
            snapshot_every=snapshot_every,
            save_every=save_every,
            keep=keep,
        )
        self.clip_norm, self._accumulate, self._sync, self._locate = clip_norm, accumulate, sync, locate
        self._advances_scheduler = scheduler_interval == "step"
        self._device = next(iter(self.state.parameter_names)).device
        self.run_dir = own_run_dir(Path(run_dir) if run_dir is not None else new_run_dir(), consensus.rank())
        self._telling = Telling(self.run_dir, self._device, listeners, quiet=quiet or consensus.rank() > 0)
        weakref.finalize(self, self._telling.close)

        self.watcher = Watcher(self.state.parameter_names)
        self.recovery = Recovery(self.state, self.policy, plan, self._telling.tell)
        self._health = Health(self.state)
        self._probe = HealthProbe(probe, self.state, self._telling)
        intervals = Intervals(check_every, snapshot_every, save_every, keep)
        folder = self.run_dir / "snapshots"
        self._upkeep = Upkeep(
            self.state,
            self._health,
            self._probe,
            self.recovery,
            self.watcher,
            self._telling,
            folder,
            intervals,
        )
        self._loop = WatchedLoop(self)
        self._unseen = Unseen(self.recovery, self.watcher)
        self.window: Window | None = None
        self._telling.note("start", environment=environment(self._device), state_bytes=self.state.nbytes())
        self._audit = Audit(self.state, self._device, self._telling.finding)
        if (unknown := unknown_schedule(self.state, scheduler_interval)) is not None:
            self._telling.tell("warning", unknown)
        self.recovery.staging.begin()

    @property
    def audit(self) -> list[Finding]:
        """What the start of the run, and its first forward pass, showed to be wrong."""
        return self._audit.findings

    # -- watch: a step function, or an ordinary loop

    def step(
        self,
        fn: Callable[[], Any],
        batch: Any = None,
        *,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ) -> StepResult:
        """Run one training step; `fn` computes the loss (a tensor, or a dict of named components).

        The guard clears gradients, runs backward, looks, clips, updates, and advances scheduler and averages.
        `batch` lets it say what was wrong with the data. `optimizer` limits the step to some of several.
        """
        if not callable(fn):
            raise TypeError(
                "guard.step takes a function that computes the loss, e.g. "
                f"guard.step(lambda: loss_fn(model, batch)); got a {type(fn).__name__}"
            )
        chosen = self._chosen(optimizer)
        self.settle()
        with self._loop.paused():
            if self.window is None or not self.window.losses:
                self.window = None
                self.begin_step()
                for each in chosen:
                    each.zero_grad(set_to_none=True)
            window = self.open_window()
            window.batches.append(batch)
            window.functions.append(fn)
            try:
                with self.first_forward():
                    if any(isinstance(each, torch.optim.LBFGS) for each in chosen):
                        return self._step_with_closure(chosen, fn, window)
                    window.losses.append(self._forward_backward(fn))
            except BaseException:
                self._abandon()
                raise
            if len(window.losses) < self._accumulate:
                return StepResult(self.step_count, None, None, action="accumulate")
            return self._follow(self.update(chosen, lambda: [each.step() for each in chosen]))

    def observe(self, **tensors: Tensor) -> None:
        """Keep an eye on tensors: call it in the step function or loop body with whatever is worth knowing.

        Their range goes into the record of the step; if the step is refused, their counts and ranges are in
        the incident. `guard.observe(alpha=self.alpha, router_entropy=entropy)`
        """
        if self.window is not None:
            self.window.observed.update({name: tensor.detach() for name, tensor in tensors.items()})

    def watch(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Guard an ordinary loop: `for batch in guard.watch(loader):`, with the loop body as it was.

        Backward, clipping and optimizer steps in the body are listened to; after a refused step everything
        is as it was before the body. After `guard.restore` it goes on with the next batch of the epoch.
        """
        if not self._sync:
            raise ValueError(
                "guard.watch needs sync=True: a loop's own scheduler would not wait; use guard.step"
            )
        return self._loop.batches(self._upkeep.batches(loader))

    def begin_step(self) -> None:
        """Between two steps all state is whole: the moment to look at it, copy it or save it."""
        self._upkeep.before_step()

    def open_window(self) -> Window:
        """Begin the transaction of the next update, if it has not begun."""
        if self.window is None:
            self.recovery.transaction.begin()
            self.window = Window()
        return self.window

    def _abandon(self) -> None:
        """The user's code raised: leave no half-done step behind."""
        self.recovery.transaction.undo(restore_rng=False)
        self.window = None

    def first_forward(self) -> AbstractContextManager[None]:
        return self._audit.first_forward()

    def saw_scaled_clip(self) -> None:
        self._audit.saw_scaled_clip()

    def _forward_backward(self, fn: Callable[[], Any], leave_out: Collection[str] = ()) -> Loss:
        loss = as_loss(fn(), leave_out)
        require_gradient(loss.total)
        trained = loss.total / self._accumulate if self._accumulate > 1 else loss.total
        self.recovery.scaling.scaled(trained).backward()  # type: ignore[no-untyped-call]
        return Loss(
            loss.total.detach(), {name: part.detach() for name, part in loss.components.items()}, loss.summed
        )

    # -- catch: look, then apply or refuse

    def update(
        self, optimizers: list[Optimizer], step: Callable[[], Any], *, in_loop: bool = False
    ) -> StepResult:
        """All gradients of the window are there: look at them before anything changes.

        `in_loop`: scaler, scheduler and averages are the loop's own to advance.
        """
        attempt = self._attempt(optimizers, step)
        if not self._sync:
            self._unseen.update(attempt, self._clip)
            self.window = None
            return StepResult(self.step_count, None, None, action="pending")
        verdict = attempt.numbers.verdict()
        total = attempt.reading.total
        if (
            not verdict.norm_is_finite
            and attempt.reading.is_half
            and not self._any_rank(bool(attempt.reading.culprits()))
        ):
            total = attempt.reading.norm_in_float32()  # 65504 is not where a norm ends
            verdict.grad_norm = float(total)
        trouble = self.watcher.trouble(verdict) or self._spike(verdict)
        if trouble is None:
            clip = self._clip
            if clip is not None:
                if attempt.window.reading is attempt.reading:  # the loop has clipped since that was read
                    self.watcher.read(self.state.held_by(optimizers)).clip(clip)
                else:
                    attempt.reading.clip(clip, total)
            if self._audit.optimizer_is_risky or (clip is None and verdict.grad_norm > _DANGEROUS_NORM):
                trouble = None if self._finite_after(optimizers, step) else "update"
            else:
                self.watcher.measure(step)
        if trouble is not None:
            return self._refuse(trouble, attempt, verdict, in_loop=in_loop)
        if not in_loop:
            self.recovery.scaling.update()
        return self._applied(attempt, verdict)

    def _attempt(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> Attempt:
        """Read the gradients, once and raw, and collect the step's numbers on the device."""
        window = self.open_window()
        self._audit.forward_was_seen()
        self.recovery.scaling.unscale(optimizers)
        reading = window.reading or self.watcher.read(self.state.held_by(optimizers))
        if not reading.gradients:
            self._abandon()
            raise ValueError(
                "no parameter has a gradient after backward: the loss does not depend on the parameters the "
                "optimizer holds. Look for .detach(), frozen layers, or an optimizer of another model."
            )
        numbers = self.watcher.numbers(
            window, reading, self.recovery.scaling.scale(self._device), consensus.gathering()
        )
        rates = [
            float(group["lr"]) for o in self.state.optimizers for group in o.param_groups if "lr" in group
        ]
        return Attempt(window, reading, optimizers, step, rates, numbers)

    @property
    def _clip(self) -> float | None:
        """What gradients are clipped at now: as configured, or as the plan's stage says."""
        return self.recovery.staging.clip_norm(self.clip_norm)

    def _finite_after(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> bool:
        """Make the update with a copy at hand; False if it made a parameter or a moment NaN or Inf."""
        self.recovery.transaction.copy_before_update(optimizers)
        self.watcher.measure(step)
        return not self._any_rank(not self._health.after_update())

    def _spike(self, verdict: Verdict) -> Trouble | None:
        """A batch that makes loss and gradient norm jump is refused, unless the loss stays where it jumped to."""
        if self.policy.spikes == "ignore" or not self.watcher.is_spike(verdict):
            return None
        if (
            self.policy.spikes == "skip"
            and self.recovery.ladder.spikes_in_a_row < self.policy.max_spikes_in_a_row
        ):
            return "spike"
        self._telling.tell(
            "spike",
            f"step {self.step_count}: loss and gradient norm jump to {verdict.loss:.4g} and "
            f"{verdict.grad_norm:.4g}; the step is applied",
        )
        if self.policy.spikes == "skip":
            self.watcher.forget()  # three in a row are no spike but a new level
        return None

    def _applied(self, attempt: Attempt, verdict: Verdict) -> StepResult:
        self.watcher.learn(verdict)
        self.recovery.ladder.success(whole=not attempt.window.left_out)
        self.recovery.staging.applied(verdict.loss, verdict.grad_norm)
        self.window = None
        return self._telling.of_step(attempt, verdict, self.counters, "none", applied=True)

    def _follow(self, result: StepResult) -> StepResult:
        """What comes after an update: the schedule, and the averages."""
        skipped = result.applied is False
        if self._advances_scheduler and (
            result.applied or (skipped and self.policy.scheduler_on_skip == "advance")
        ):
            for scheduler in self.state.schedulers:
                scheduler.step()
        if result.applied:
            for average in self.state.averages:
                update_average(average, next(iter(self.state.models.values())))
        return result

    # -- recover: undo the step, and climb the ladder

    def _refuse(self, trouble: Trouble, attempt: Attempt, verdict: Verdict, *, in_loop: bool) -> StepResult:
        overflow = trouble == "gradient" and self.recovery.scaling.on
        if overflow and self.recovery.scaling.is_ordinary_backoff(verdict.scale):
            return self._back_off(attempt, verdict, in_loop=in_loop)
        refused = self._facts(trouble, attempt, verdict)
        attempt.update_was_bad = refused.bad_update
        self.recovery.scaling.refused(overflow=overflow)
        self.recovery.undo(attempt.optimizers, update_was_made=trouble == "update")
        if not in_loop:
            self.recovery.scaling.update()
            self.recovery.scaling.settle_refusal()
        self.window = None
        if not in_loop and self._may_leave_out(refused, attempt):
            return self._again_without(refused, attempt)
        refusal = self._answer(refused, attempt, verdict)
        if in_loop:
            self._loop.refused(refusal)  # it hands the batches out once more, then calls `conclude`
        else:
            self.conclude(refusal, self._relive(attempt) if self.wants_replay(refusal) else None)
        return refusal.result

    def _may_leave_out(self, refused: RefusedStep, attempt: Attempt) -> bool:
        """Every rank can do without what is bad; if one cannot, none does."""
        if self.policy.bad_component != "leave-out":
            return False
        return not self._any_rank(not can_do_without(refused, attempt, self.recovery.ladder))

    def _again_without(self, refused: RefusedStep, attempt: Attempt) -> StepResult:
        """Make the step once more from its good components; say so, and look into the bad ones."""
        bad = list(refused.components)
        first = self.recovery.ladder.left_out_in_a_row == 0
        evidence = self._relive(attempt) if self._locate and first else None
        window = self.open_window()
        window.batches, window.functions, window.left_out = (
            attempt.window.batches,
            attempt.window.functions,
            bad,
        )
        for fn in window.functions:
            window.losses.append(self._forward_backward(fn, leave_out=bad))
        self._telling.tell("leave-out", f"step {self.step_count}: {sentence(refused)}; trained without it")
        result = self.update(attempt.optimizers, attempt.make_update)
        if result.applied:
            self.recovery.ladder.left_out()
            result.action = "leave-out"
            self._file(refused, evidence, attempt, result, goes_on=not first)
        return result

    def _answer(self, refused: RefusedStep, attempt: Attempt, verdict: Verdict) -> Refusal:
        """The step is undone: record it, and ask the ladder what comes next."""
        bad = self._any_rank(bool(self.bad_state()))
        if not bad and self.recovery.ladder.failures_in_a_row == 0:
            bad = self._any_rank(self._probe.look("refusal").is_bad)  # then skipping cannot help: go back
        action = self.recovery.ladder.failure(state_is_bad=bad, is_spike=refused.trigger == "spike")
        self.recovery.staging.refused()
        if action == "rollback" and not self.recovery.last_good.available:
            action = "stop"
        what = sentence(refused)
        self._telling.say(f"step {self.step_count}: {what}. Action: {action}.")
        result = self._telling.of_step(attempt, verdict, self.counters, action, applied=False, what=what)
        return Refusal(refused, attempt, action, what, result)

    # -- locate and explain: follow the refused step once more

    def wants_replay(self, refusal: Refusal) -> bool:
        """The first of a streak is followed op by op; the rest would only say the same again."""
        of_the_step = refusal.refused.bad_update or refusal.refused.trigger in ("loss", "gradient")
        return self._locate and of_the_step and self.recovery.ladder.failures_in_a_row == 1

    def _relive(self, attempt: Attempt) -> FailedStep | None:
        """Call the step's functions again, from the same state and random numbers, under the tracer."""
        try:
            return Replay(self.recovery, attempt).of_functions()
        except Exception as error:  # noqa: BLE001 - a replay that fails must not end the training it explains
            self._telling.tell(
                "warning", f"the replay of a refused step failed: {type(error).__name__}: {error}"
            )
            return None

    def conclude(self, refusal: Refusal, evidence: FailedStep | None) -> None:
        """Write the incident, show it, and do what the ladder said."""
        goes_on = self.recovery.ladder.failures_in_a_row > 1 and evidence is None
        self._file(refusal.refused, evidence, refusal.attempt, refusal.result, goes_on=goes_on)
        if refusal.action == "lower-lr":
            self._telling.tell("lower-lr", self.recovery.lower_rates())
        elif refusal.action == "rollback":
            self._telling.tell("rollback", self.recovery.roll_back(self.step_count))
            self.watcher.forget()
        elif refusal.action == "stop":
            self._stop(refusal.what)

    def _file(
        self,
        refused: RefusedStep,
        evidence: FailedStep | None,
        attempt: Attempt,
        result: StepResult,
        *,
        goes_on: bool,
    ) -> None:
        """Explain what happened, keep it with the run, and show it the first time."""
        action = result.action if result.action in ACTIONS else "none"
        machine = environment(self._device)
        result.incident = explain(
            refused, evidence, attempt.optimizers, action, self._telling.history, machine
        )
        self._telling.of_incident(result.incident, goes_on=goes_on)

    def _back_off(self, attempt: Attempt, verdict: Verdict, *, in_loop: bool) -> StepResult:
        """The scaler's own business: it skips and halves its scale. Only buffers gone bad are mended."""
        if not self._health.after_forward():
            self.recovery.transaction.undo(restore_rng=False)
        for optimizer in attempt.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if not in_loop:
            self.recovery.scaling.update()
        self.recovery.ladder.backoff()
        self.window = None
        return self._telling.of_step(attempt, verdict, self.counters, "backoff", applied=False)

    def _facts(self, trouble: Trouble, attempt: Attempt, verdict: Verdict) -> RefusedStep:
        jumps = self.watcher.jumps(verdict) if trouble == "spike" else {}
        if not verdict.loss_is_finite:  # all ranks know that, and may have different components
            verdict.bad_components = consensus.union(verdict.bad_components, self._device)
        return facts.gather(
            self.step_count, trouble, attempt, verdict, self._health, self.recovery.scaling, jumps
        )

    def _any_rank(self, flag: bool) -> bool:
        return consensus.any_rank(flag, self._device)

    def _stop(self, why: str) -> None:
        """End the run with a clean checkpoint and a message that says what to do next."""
        saved = self._upkeep.clean_checkpoint()
        message = self._telling.of_the_end(self.recovery.ladder.reason_to_stop(), why, self.counters, saved)
        raise RunStopped(message, str(saved) if saved else None)

    # -- what a user may ask

    @property
    def counters(self) -> Counters:
        """Applied, skipped, backed off, rolled back: every step is in one of them."""
        return self.recovery.ladder.counters

    @property
    def step_count(self) -> int:
        """The number of the next step; restored with a checkpoint."""
        return self._telling.step

    @property
    def stage(self) -> str | None:
        """The stage of the plan the run is in; None without a plan."""
        stage = self.recovery.staging.stage
        return stage.name if stage is not None else None

    @property
    def epoch(self) -> int:
        """How many times `guard.watch` has gone through its loader; restored with a checkpoint."""
        return self._upkeep.position.epoch

    def mend_buffers(self) -> bool:
        """A loop's body ended without an update: what its forward pass did to buffers stays, if it is finite.

        True if it was not, and the buffers are as before.
        """
        healthy = self._health.after_forward()
        if not healthy:
            self.recovery.transaction.undo(restore_rng=False)
            self._telling.tell(
                "mended",
                f"before step {self.step_count}: a batch that was not trained on left NaN or Inf in "
                "buffers; they are as before",
            )
        return not healthy

    @property
    def success_rate(self) -> float:
        """Applied updates that were kept, as a share of all steps."""
        return self.counters.success_rate

    def bad_state(self) -> list[tuple[str, TensorSummary]]:
        """(kind, summary) of every parameter, buffer, moment and average that is not finite now."""
        return self._health.bad()

    # -- optimizers that evaluate the loss themselves

    def _step_with_closure(
        self, optimizers: list[Optimizer], fn: Callable[[], Any], window: Window
    ) -> StepResult:
        optimizer = optimizers[0]
        if self._accumulate > 1 or self.recovery.scaling.on or len(optimizers) > 1:
            raise ValueError(
                f"{type(optimizer).__name__} evaluates the loss itself: it cannot be combined with accumulation, "
                "a scaler or a second optimizer in one step"
            )

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = self._forward_backward(fn)
            window.losses.append(loss)
            if self._clip is not None:
                self.watcher.read(self.state.held_by(optimizers)).clip(self._clip)
            return loss.total

        return self._follow(self.update_then_look(optimizers, lambda: optimizer.step(closure)))  # type: ignore[arg-type]

    def update_then_look(
        self, optimizers: list[Optimizer], step: Callable[[], Any], *, in_loop: bool = False
    ) -> StepResult:
        """Copy, let the optimizer run, look at what it made, and undo it if that is bad."""
        window = self.open_window()
        finite = self._finite_after(optimizers, step)
        del window.losses[1:]  # the loss before the update; the line search's own evaluations are not steps
        attempt = self._attempt(optimizers, step)
        verdict = attempt.numbers.verdict()
        if finite and verdict.loss_is_finite:
            return self._applied(attempt, verdict)
        return self._refuse("update", attempt, verdict, in_loop=in_loop)

    # -- sync=False: verdicts that come one step later

    def settle(self) -> None:
        """With sync=False: wait for the last step's verdict and do what follows from it."""
        self._unseen.settle(self._settle)

    def _settle(self, attempt: Attempt, verdict: Verdict) -> None:
        trouble = self.watcher.trouble(verdict)
        if trouble is None:
            self._follow(self._applied(attempt, verdict))
        elif trouble == "gradient" and self.recovery.scaling.is_ordinary_backoff(verdict.scale):
            self.recovery.ladder.backoff()
            self._telling.of_step(attempt, verdict, self.counters, "backoff", applied=False)
        else:
            self.recovery.scaling.hold_floor()
            refusal = self._answer(self._facts(trouble, attempt, verdict), attempt, verdict)
            self._follow(refusal.result)
            self.conclude(refusal, None)

    # -- save and restore

    def save(self, path: str | Path) -> Path:
        """Write everything the run needs to go on, atomically; refused if any of it is not finite."""
        self.settle()
        if self.window is not None and self.window.losses:
            raise CheckpointError(
                f"{path} was not written: {len(self.window.losses)} micro-batches wait for their update, and their "
                "gradients are in no checkpoint. Save after the update."
            )
        return self._upkeep.save(Path(path))

    def restore(self, path: str | Path, resume_lr: str = "checkpoint") -> None:
        """Load what `save` wrote, after verifying it. Says both rates if they differ; `resume_lr` decides:
        "checkpoint" goes on with the saved ones, "config" with those the optimizers have now."""
        self._unseen.forget()
        self.window = None
        self._upkeep.restore(Path(path), resume_lr)

    def close(self) -> None:
        """Wait for the last verdict and close the record. Also done at exit."""
        self.settle()
        self._telling.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _chosen(self, optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
        if optimizer is None:
            return self.state.optimizers
        chosen = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        if any(each not in self.state.optimizers for each in chosen):
            raise ValueError("guard.step(optimizer=...) takes only optimizers that were given to the Guard")
        return chosen
