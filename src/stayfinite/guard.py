"""Guard: watch every step, catch what is not finite, keep it out of the state, bring the run back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import Finding, TensorSummary
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.arguments import check_arguments, chosen_optimizers, data_among, unknown_schedule
from stayfinite.guarding.attempt import Attempt, Outcome, StepResult
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.deferred import DeferredUpdate
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.loop import WatchedLoader, WatchedLoop
from stayfinite.guarding.maintenance import Intervals, Maintenance
from stayfinite.guarding.prepared import prepared_parts
from stayfinite.guarding.proofs import check_prove
from stayfinite.guarding.refusal_handler import RefusalHandler
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_owner import NoGradients, StepOwner
from stayfinite.hooks.interrupts import interrupts_pass, interrupts_wait
from stayfinite.recover import CheckpointError, Policy
from stayfinite.recover.ladder import Counters
from stayfinite.recover.plan import Plan
from stayfinite.recover.state import Models, TrainingState, update_average
from stayfinite.report.progress import Says
from stayfinite.report.refusal import sentence
from stayfinite.watch.watcher import Call

__all__ = ["Guard", "StepResult"]

Batch = TypeVar("Batch")


class Guard:
    """Guards a training run. Make it, then call `guard.step(fn)` or loop over `guard.watch(loader)`."""

    _explainer_class: type[Explainer] = Explainer

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
        prove: str = "failure",
        prove_limit: float = 60.0,
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
        prove: "failure" tries remedies on a located step in forked children, once for every place; "stop" only when
            the policy ends the run; "off". At most `prove_limit` seconds each.
        check_every, snapshot_every: steps between looks at all state, and between copies to go back to.
        save_every, keep: steps between checkpoints in run_dir/snapshots (0: none), and how many stay (0: all).
        probe: gives a tensor, a number or a dict of named ones that must be finite (a forward pass on a fixed batch,
            the alphas of a layer). Called before every epoch of `watch`, before a copy to go back to is taken, before
            a save, after a restore and at the first refused step of a row; it leaves no trace.
        plan: stages that begin small and scale up when their criteria hold.
        listeners: callables, TensorBoard writers or `stayfinite.loggers` that get every record too; loggers hear of
            incidents and decisions, and of several ranks only rank 0's are used.
        """
        self.policy = policy if isinstance(policy, Policy) else Policy.named(policy)
        self.state = TrainingState(model, optimizer, scheduler, scaler, ema)
        intervals = Intervals(check_every, snapshot_every, save_every, keep)
        check_arguments(
            self.state, clip_norm, accumulate, sync, scheduler_interval, probe, **asdict(intervals)
        )
        self._sync, self._advances_scheduler = sync, scheduler_interval == "step"
        run = self._guarded_run(plan, probe, run_dir, listeners, quiet)
        self.run_dir, self.recovery, self.ranks = run.folder, run.recovery, run.ranks
        self._reporter, self._health, self._foresight = run.reporter, run.health, run.foresight
        self._audit = Audit(self.state, run.device, run.reporter.finding, run.observers.module_loads)
        if not run.observers.history.step:
            run.observers.began = self._audit.began
        if (unknown := unknown_schedule(self.state, scheduler_interval)) is not None:
            self._reporter.tell("warning", unknown)
        self.recovery.staging.begin()

        self.explainer = self._explainer_class(run, locates=locate, proves=check_prove(prove, prove_limit))
        self._maintenance = Maintenance(run, self.explainer, intervals)
        self._owner = StepOwner(run, self._audit, clip_norm, accumulate)
        self._deferred = DeferredUpdate(run)
        self._refusal_handler = RefusalHandler(run, self._owner, self.explainer, self._maintenance)
        self.loop = WatchedLoop(
            run, self._audit, self._maintenance, self._owner, self.explainer, self._refusal_handler
        )

    def _guarded_run(
        self,
        plan: Plan | None,
        probe: Callable[[], Any] | None,
        run_dir: str | Path | None,
        listeners: Sequence[Any],
        quiet: bool,
    ) -> GuardedRun:
        says: Says = "nothing" if quiet else "everything"
        return GuardedRun(self.state, self.policy, plan, probe, run_dir, listeners, says=says)

    @classmethod
    def from_accelerator(cls, accelerator: Any, **options: Any) -> Guard:
        """Guard what an `accelerate.Accelerator` has prepared: its models, optimizers, schedulers and scaler.

        `options` are those of Guard; a loop goes over `guard.watch(loader)`. `accelerator.save_state` writes nothing
        while the state holds NaN or Inf that cannot be repaired: it raises CheckpointError.
        """
        guard = cls(**{**prepared_parts(accelerator), **options})
        accelerator.register_save_state_pre_hook(guard._before_save_state)
        return guard

    def _before_save_state(self, models: Any, weights: Any, folder: str) -> None:
        obstacle = self.obstacle_to_saving()
        if obstacle is not None:
            raise CheckpointError(f"{folder} was not written: {obstacle}")

    # -- watch: a step function, or an ordinary loop

    def step(
        self,
        fn: Callable[..., Any],
        *args: Any,
        batch: Any = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ) -> StepResult:
        """Run one training step; `fn(*args)` computes the loss (a tensor, or a dict of named components), or gives
        `(loss, aux)`, of which `aux` comes back in the result.

        The guard clears gradients, runs backward, looks, clips, updates, and advances scheduler and averages.
        `batch` lets it say what was wrong with the data; it need not be given if it is among `args`. `optimizer`
        limits the step to some of several.
        """
        if not callable(fn):
            raise TypeError(
                "guard.step takes a function that computes the loss, e.g. "
                f"guard.step(loss_fn, model, batch); got a {type(fn).__name__}"
            )
        chosen = chosen_optimizers(self.state, optimizer)
        self.settle()
        owner = self._owner
        if not owner.accumulating:
            owner.window = None
            self._maintenance.before_step()
        with self.loop.paused(), interrupts_wait():
            if not owner.accumulating:
                for each in chosen:
                    each.zero_grad(set_to_none=True)
            call, window = Call.of(fn, args), owner.open_window()
            window.batches.append(batch if batch is not None or not args else data_among(args))
            window.calls.append(call)
            made: Outcome | None = None
            try:
                with self._audit.first_forward():
                    if any(isinstance(each, torch.optim.LBFGS) for each in chosen):
                        made = owner.make_with_closure(chosen, call)
                    else:
                        with interrupts_pass():
                            loss = owner.forward_backward(call)
                        window.losses.append(loss)
            except BaseException:
                owner.abandon(chosen)
                raise
            aux, owner.aux = owner.aux, None
            if made is not None:
                result = self._follow(self._end(made), chosen)
            elif len(window.losses) < owner.accumulate:
                result = StepResult(self.step_count, None, None, action="accumulate")
            else:
                result = self._update(chosen, lambda: [each.step() for each in chosen])
            result.aux = aux
            return result

    def watch(self, loader: Iterable[Batch]) -> WatchedLoader[Batch]:
        """Guard an ordinary loop: `for batch in guard.watch(loader):`, with the loop body as it was.

        Backward, clipping and optimizer steps in the body are listened to; after a refused step everything
        is as it was before the body. After `guard.restore` it goes on with the next batch of the epoch.
        """
        if not self._sync:
            raise ValueError(
                "guard.watch needs sync=True: a loop's own scheduler would not wait; use guard.step"
            )
        return WatchedLoader(loader, self.loop.batches)

    def observe(self, **tensors: Tensor) -> None:
        """Keep an eye on tensors: call it in the step function or loop body with whatever is worth knowing.

        Their range goes into the record of the step; if the step is refused, their counts and ranges are in
        the incident. `guard.observe(alpha=self.alpha, router_entropy=entropy)`
        """
        if self._owner.window is not None:
            self._owner.window.observed.update({name: tensor.detach() for name, tensor in tensors.items()})

    # -- catch, locate, explain, recover

    def _update(self, optimizers: list[Optimizer], step: Callable[[], Any]) -> StepResult:
        """All gradients are there: make the update if they are good."""
        try:
            attempt = self._owner.gather(optimizers, step)
            waits = self._sync or self._deferred.must_wait(attempt)
            outcome = self._owner.look(attempt) if waits else None
        except NoGradients:
            self._owner.abandon(optimizers)
            raise
        if outcome is not None:
            if outcome.trouble is None:
                outcome = self._owner.apply(outcome)
            if outcome.trouble is None and not self._sync:
                self._deferred.made(attempt)
            return self._follow(self._end(outcome), optimizers)
        self._deferred.make(attempt, self._owner.clip)
        self._owner.window = None
        return StepResult(self.step_count, None, None, action="pending")

    def _end(self, outcome: Outcome) -> StepResult:
        """An update that is good stays. Any other is undone, located, explained, and answered as the policy says."""
        scaling, refusal_handler = self.recovery.scaling, self._refusal_handler
        self._maintenance.position.waiting = False
        if outcome.trouble is None:
            scaling.update()
            self.explainer.saw_healthy(outcome.attempt)
            return self._owner.applied(outcome)
        if refusal_handler.is_back_off(outcome):
            scaling.update()
            return refusal_handler.back_off(outcome)
        refused = refusal_handler.undo(outcome)
        scaling.update()
        refusal_handler.settle_scale()
        if refusal_handler.may_leave_out(refused, outcome.attempt):
            return self._again_without(refused, outcome.attempt)
        refusal = refusal_handler.answer(refused, outcome)
        with interrupts_pass():
            located = self.explainer.replay(outcome.attempt) if self.explainer.wants_replay(refusal) else None
        refusal_handler.conclude(refusal, located)
        return refusal.result

    def _again_without(self, refused: FailedStep, attempt: Attempt) -> StepResult:
        """Make the step once more from its good components; say so, and look into the bad ones."""
        ladder, explainer = self.recovery.ladder, self.explainer
        first = ladder.left_out_in_a_row == 0
        with interrupts_pass():
            located = explainer.replay(attempt) if explainer.locates and first else None
        located = explainer.from_any_rank(located, refused.rank)
        self._owner.compute_again_without(list(refused.components), attempt)
        self._reporter.tell("leave-out", f"step {self.step_count}: {sentence(refused)}; trained without it")
        result = self._end(self._owner.make(attempt.optimizers, attempt.make_update))
        if result.applied:
            ladder.left_out()
            result.action = "leave-out"
            explainer.file(refused, located, attempt, result, goes_on=not first)
        return result

    def _follow(self, result: StepResult, optimizers: Sequence[Optimizer]) -> StepResult:
        """What comes after an update: the schedules of its optimizers, and the averages of their models."""
        on_skip = self.policy.scheduler_on_skip == "advance"
        if self._advances_scheduler and (result.applied or (result.applied is False and on_skip)):
            for scheduler in self.state.schedulers_of(optimizers):
                scheduler.step()
        if result.applied:
            for average, model in self.state.averages_of(optimizers):
                update_average(average, model)
        return result

    def settle(self) -> None:
        """With sync=False: wait for the last step's verdict and do what follows from it."""
        with interrupts_wait():
            self._settle()

    def _settle(self) -> None:
        outcome = self._deferred.outcome()
        if outcome is None:
            return
        optimizers = outcome.attempt.optimizers
        if outcome.trouble is None:
            self._follow(self._owner.applied(outcome), optimizers)
        elif self._refusal_handler.is_back_off(outcome):
            self._refusal_handler.backed_off(outcome)
        else:
            if outcome.trouble != "gradient":
                self._deferred.put_back_scale()
            self.recovery.scaling.hold_floor()
            self._refusal_handler.settle_scale()
            self._owner.put_back_random_numbers(self._deferred.random_numbers_before, outcome.attempt.window)
            refusal = self._refusal_handler.answer(self._refusal_handler.facts(outcome), outcome)
            self._follow(refusal.result, optimizers)
            self._refusal_handler.conclude(refusal, None)

    # -- save and restore

    def save(self, path: str | Path) -> Path:
        """Write everything the run needs to go on, atomically. What of it is not finite is put back from the last
        good copy first; if that cannot be done, nothing is written.

        In the body of a watched loop before its update, the batch is not counted: a resumed run trains on it.
        """
        if self.loop.replaying:
            return Path(path)  # nothing that a body does when it is followed once more may stay
        self._ready_to_save(f"{path} was not written")
        return self._maintenance.save(Path(path))

    def restore(self, path: str | Path, resume_lr: str = "checkpoint") -> None:
        """Load what `save` wrote, after verifying it, or nothing of it. Says both rates if they differ; `resume_lr`
        decides: "checkpoint" goes on with the saved ones, "config" with those the optimizers have now."""
        self._deferred.forget()
        self._maintenance.restore(Path(path), resume_lr)
        self._owner.window = None

    def obstacle_to_saving(self) -> str | None:
        """For checkpoints that somebody else writes: brings the state to what belongs into one, and says what of it is
        not finite and cannot be repaired; None if nothing is."""
        self.settle()
        self.loop.decision.settle_for_save()
        return self._maintenance.obstacle_to_saving()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint of your own: what the guard knows beside models, optimizers, schedulers and scaler.

        Step and position in the data, counters, stage of the plan, random states; `torch.load` reads it with
        weights_only.
        """
        self._ready_to_save("there is no state to save")
        return self._maintenance.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Load models, optimizers, schedulers and scaler first."""
        self._deferred.forget()
        self._owner.window = None
        self._maintenance.load_state_dict(state)

    def _ready_to_save(self, otherwise: str) -> None:
        self.settle()
        self.loop.decision.settle_for_save()
        window = self._owner.window
        if window is not None and window.losses:
            raise CheckpointError(
                f"{otherwise}: {len(window.losses)} micro-batches wait for their update, and their "
                "gradients are in no checkpoint. Save after the update."
            )

    def close(self) -> None:
        """Wait for the last verdict, look at all state once more, and close the record. Also done at exit."""
        self.settle()
        self._owner.rest()
        self._maintenance.look_at_the_end()
        # An error may have come before the last update was on record: what it knows of the one before is noted at that.
        waiting = self.loop.decision.off_record
        last = self._owner.last_update() if waiting is None else waiting.verdict.update_ratio
        self._reporter.last_update(last)
        self.explainer.conclude()
        self._foresight.close()
        self._reporter.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- what a user may ask

    def _repr_html_(self) -> str:
        """For notebooks: counts, the last steps, and the last failure."""
        from stayfinite.report.html.notebook import guard_html  # needed in a notebook only

        shown = self._reporter.explained
        counts, incident = self.counters.to_dict(), shown.to_json() if shown is not None else None
        return guard_html(counts, self._reporter.lines, self._reporter.path, incident)

    @property
    def audit(self) -> list[Finding]:
        """What the start of the run, and its first forward pass, showed to be wrong."""
        return self._audit.findings

    def bad_state(self) -> list[tuple[str, TensorSummary]]:
        """(kind, summary) of every parameter, buffer, moment and average that is not finite now."""
        return self._health.bad()

    @property
    def clip_norm(self) -> float | None:
        """What gradients are clipped at, unless the plan's stage says otherwise; may be set between steps."""
        return self._owner.clip_norm

    @clip_norm.setter
    def clip_norm(self, norm: float | None) -> None:
        self._owner.clip_norm = norm

    @property
    def step_count(self) -> int:
        """The number of the next step; restored with a checkpoint."""
        return self._reporter.step

    @step_count.setter
    def step_count(self, number: int) -> None:
        """A framework goes on at this step."""
        self._reporter.step = number

    @property
    def epoch(self) -> int:
        """How many times `guard.watch` has gone through its loader; restored with a checkpoint."""
        return self._maintenance.position.epoch

    @property
    def stage(self) -> str | None:
        """The stage of the plan the run is in; None without a plan."""
        stage = self.recovery.staging.stage
        return stage.name if stage is not None else None

    @property
    def counters(self) -> Counters:
        """Applied, skipped, backed off, rolled back: every step is in one of them."""
        return self.recovery.ladder.counters

    @property
    def success_rate(self) -> float:
        """Applied updates that were kept, as a share of all steps."""
        return self.counters.success_rate
