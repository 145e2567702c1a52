"""RefusalHandler: what follows from trouble. The step is undone, the ladder is asked, and what it says is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import as_float
from stayfinite.findings.mechanism.overflow import is_spent
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding import facts
from stayfinite.guarding.attempt import Attempt, Outcome, Refusal, StepResult
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.leave_out import can_do_without
from stayfinite.guarding.maintenance import Maintenance
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_owner import StepOwner
from stayfinite.hooks.interrupts import interrupts_pass
from stayfinite.observers.history import here
from stayfinite.recover import Action, RunStopped
from stayfinite.recover.ranks import RankLost, joined, packed
from stayfinite.recover.recovery import clear_gradients
from stayfinite.report.refusal import sentence
from stayfinite.watch.finite import peak, tensors_in
from stayfinite.watch.verdict import StepVerdict

_TRIED_BEFORE = 2  # scales in vain, right before
_MOST_NAMES = 20  # of bad gradients that a rank tells the others
_LOWEST_OF_SCRIPTS = 2.0**-6
"""A script's own scaler may go below 1: gradients that float16 does not hold may fit a little below it."""


class RefusalHandler:
    """Leaves the run as if a refused step had not been, or brings it back to where it was good."""

    def __init__(
        self, run: GuardedRun, owner: StepOwner, explainer: Explainer, maintenance: Maintenance
    ) -> None:
        self._run, self._owner, self._explainer, self._maintenance = run, owner, explainer, maintenance
        self._recovery, self._reporter = run.recovery, run.reporter
        self._stopped: tuple[int, str, str | None] | None = None  # the step, what was said, the checkpoint

    # -- an overflow that the scaler expects

    def is_back_off(self, outcome: Outcome) -> bool:
        """Gradients overflowed at a loss scale that may be halved: the scaler's own business."""
        scaling = self._recovery.scaling
        return outcome.trouble == "gradient" and scaling.is_ordinary_backoff(outcome.verdict.scale)

    def back_off(self, outcome: Outcome) -> StepResult:
        """The scaler skips and halves its scale. Only buffers gone bad are mended."""
        self._put_back_bad_buffers()
        clear_gradients(outcome.attempt.group)
        self._owner.window = None
        return self.backed_off(outcome)

    def backed_off(self, outcome: Outcome) -> StepResult:
        """Count and record it."""
        self._recovery.ladder.backoff()
        self._run.foresight.refused(self._reporter.step, outcome.verdict, by_scaler=True)
        counters = self._recovery.ladder.counters
        self._run.observers.scalers.skipped()
        attempt = outcome.attempt
        return self._reporter.of_step(
            outcome.verdict, attempt.rates, attempt.window.started, counters, "backoff", applied=False
        )

    def skipped_by_scaler(
        self,
        optimizer: Optimizer,
        losses: Sequence[Tensor],
        started: float,
        in_vain: Callable[[str, Action], None],
    ) -> None:
        """A script's own scaler has skipped an update: as it may, unless no scale would have made it finite.

        Then it is a failure as any other: `in_vain` is told what was bad (loss, gradient) and what is done about it.
        """
        scale = self._run.observers.scalers.scale()
        values = torch.stack([loss.detach().float() for loss in losses]).tolist() if losses else []
        loss = sum(values) / len(values) if values else None
        verdict = StepVerdict(loss, {}, math.inf, float(scale) if scale is not None else None, None, loss)
        rates = [rate for group in optimizer.param_groups if (rate := as_float(group.get("lr"))) is not None]
        ladder, what = self._recovery.ladder, self._no_scale_helps(verdict)
        # Who only watches decides nothing. Ranks see different losses here, and must decide alike.
        if what is None or not self._run.refuses or self._run.ranks.together:
            ladder.skipped_by_scaler(expected=what is None)
            action: Action = "skip"
        else:
            can_go_back = self._maintenance.agreed(is_bad=False)[1]
            action = ladder.failure(self._run.numbers_of([optimizer]), state_is_bad=False, is_spike=False)
            action = "stop" if action == "rollback" and not can_go_back else action
        if what is not None:
            self._reporter.refusal(what, action)
        written = "backoff" if what is None else action
        self._reporter.of_step(verdict, rates, started, ladder.counters, written, applied=False, what=what)
        if what is not None:
            if not verdict.loss_is_finite:
                in_vain("loss", action)
            elif verdict.scale is None or not is_spent(verdict.scale):  # else the rules on the scale say why
                in_vain("gradient", action)
            self._do(action, what)

    def _no_scale_helps(self, verdict: StepVerdict) -> str | None:
        """Why a smaller loss scale is no answer to this step; None if it is one."""
        if not verdict.loss_is_finite:
            return f"the loss is {verdict.loss}"
        floor = min(self._run.policy.scale_floor, _LOWEST_OF_SCRIPTS)
        before = list(self._run.observers.history.recent)[-_TRIED_BEFORE:]
        tried = len(before) == _TRIED_BEFORE and not any(record.applied for record in before)
        if tried and verdict.scale is not None and verdict.scale / 2 < floor:
            return f"gradients are not finite at a loss scale of {verdict.scale:g}, and a smaller one does not help"
        return None

    # -- undo

    def undo(self, outcome: Outcome) -> FailedStep:
        """Look at everything, then leave it as it was before the step. The scaler is settled by its owner."""
        refused = self.facts(outcome)
        attempt = outcome.attempt
        attempt.update_was_bad = refused.bad_update
        scaling = self._recovery.scaling
        scaling.refused(attempt.group, overflow=outcome.trouble == "gradient" and scaling.on)
        self._recovery.undo(attempt.group, update_was_made=attempt.made)
        self._owner.put_back_random_numbers(self._recovery.transaction.rng, attempt.window)
        self._owner.window = None
        return self._told_apart(refused) if refused.bad_update else refused

    def _told_apart(self, refused: FailedStep) -> FailedStep:
        """The update is undone: what is still bad was so before it."""
        before = {bad.name for _, bad in self._run.health.bad()}
        return replace(
            refused, state=tuple(replace(held, before=held.name in before) for held in refused.state)
        )

    def update_scale(self, update: Callable[[], None], *, forced: bool) -> None:
        """The loop's own call of scaler.update(); `forced`: to a scale of its own."""
        scaling = self._recovery.scaling
        refused = scaling.has_refused
        if scaling.prepare_update() or forced:
            update()
        if refused and not forced:
            self.settle_scale()

    def settle_scale(self) -> None:
        """The scaler of a refused step: halved or as it was, not below its floor, and a number."""
        scaling = self._recovery.scaling
        scaling.settle_refusal()
        if (repaired := scaling.repair()) is not None:
            self._reporter.tell("repair", repaired)

    def facts(self, outcome: Outcome) -> FailedStep:
        """All that is known of the step without replaying it."""
        run, verdict, trouble = self._run, outcome.verdict, outcome.trouble
        assert trouble is not None, "only a step with trouble is refused"
        jumps = run.watcher.jumps(verdict) if trouble == "spike" else {}
        largest = peak(tensor for _, tensor in tensors_in(outcome.attempt.window.batches))
        verdict.input_absmax = float(largest) if largest is not None else None
        culprits = self._culprits(outcome) if not verdict.norm_is_finite else []
        if not verdict.loss_is_finite:  # all ranks know that, and may have different components
            verdict.bad_components = run.ranks.union(verdict.bad_components)
        step = facts.gather(
            self._reporter.step,
            trouble,
            outcome.attempt,
            verdict,
            run.health,
            self._recovery.scaling,
            jumps,
            culprits,
        )
        return replace(step, asked=here())

    def _culprits(self, outcome: Outcome) -> list[str]:
        """The gradients that are bad; where the ranks have not averaged theirs, perhaps those of another one."""
        attempt = outcome.attempt
        own = attempt.culprits()
        self._run.observers.clips.bad_gradients(len(own), len(attempt.reading.gradients))
        told = self._run.ranks.texts(packed(own[:_MOST_NAMES]))
        return own or next((joined([text]) for text in told if text), [])

    def mend_buffers(self) -> bool:
        """A loop's body ended without an update: what its forward pass did to buffers stays, if it is finite.

        True if it was not, and the buffers are as before.
        """
        mended = self._run.refuses and self._put_back_bad_buffers()
        if mended:
            self._explainer.mended()
        return mended

    def _put_back_bad_buffers(self) -> bool:
        """True if buffers were bad and are not any more; what a checkpoint brought was bad before the step."""
        if self._run.health.after_forward():
            return False
        self._recovery.transaction.undo_last_batch()
        if not self._run.health.after_forward():  # an earlier micro-batch had done it
            self._recovery.transaction.undo(restore_rng=False)
        return self._run.health.after_forward()

    # -- recover: climb the ladder

    def may_leave_out(self, refused: FailedStep, attempt: Attempt) -> bool:
        """Every rank can do without what is bad; if one cannot, none does."""
        if self._run.policy.bad_component != "leave-out":
            return False
        return not self._run.ranks.any(not can_do_without(refused, attempt, self._recovery.ladder))

    def answer(self, refused: FailedStep, outcome: Outcome) -> Refusal:
        """The step is undone: record it, and ask the ladder what comes next."""
        run, ladder = self._run, self._recovery.ladder
        run.foresight.refused(self._reporter.step, outcome.verdict)
        who = run.numbers_of(outcome.attempt.optimizers)
        first = ladder.failures_of(who) == 0
        bad, can_go_back = self._maintenance.agreed(bool(run.health.bad()))
        if not bad and first:
            bad = run.ranks.any(run.probe.look("refusal").is_bad)  # then skipping cannot help: go back
        action = ladder.failure(
            who,
            state_is_bad=bad,
            is_spike=refused.trigger == "spike",
            was_foretold=can_go_back and self._was_foretold(refused),
        )
        if (refused.settings or outcome.verdict.settings_are_bad) and not first:
            action = "stop"  # no batch brings a learning rate back
        self._recovery.staging.refused()
        if action == "rollback" and not can_go_back:
            action = "stop"
        what = sentence(refused)
        self._reporter.refusal(what, action)
        attempt = outcome.attempt
        result = self._reporter.of_step(
            outcome.verdict,
            attempt.rates,
            attempt.window.started,
            ladder.counters,
            action,
            applied=False,
            what=what,
            who=who,
            rate=attempt.rate,
        )
        return Refusal(refused, attempt, action, what, result, first)

    def _was_foretold(self, refused: FailedStep) -> bool:
        """The end of a growth that was seen before; with several ranks each sees its own, and that decides nothing."""
        run = self._run
        if run.policy.foresee == "warn" or run.ranks.together or refused.trigger not in ("loss", "gradient"):
            return False
        return run.foresight.course.has_come_true

    @contextmanager
    def told_if_a_rank_is_lost(self, refusal: Refusal, evidence: FailedStep | None = None) -> Iterator[None]:
        """While the ranks find out where a step went wrong: if one dies now, the refused step is not forgotten."""
        try:
            yield
        except RankLost as lost:
            raise RankLost(f"{lost}. {self._explainer.file_without_others(refusal, evidence)}") from (
                lost.__cause__
            )

    def shared(self, refusal: Refusal, evidence: FailedStep | None) -> FailedStep | None:
        """What any rank has seen of it, on all of them."""
        with self.told_if_a_rank_is_lost(refusal, evidence):
            return self._explainer.from_any_rank(evidence, refusal.refused.rank)

    def conclude(self, refusal: Refusal, evidence: FailedStep | None, *, is_shared: bool = False) -> None:
        """Write the incident, show it, and do what the ladder said. `is_shared`: all ranks have this evidence."""
        if not is_shared:
            evidence = self.shared(refusal, evidence)
        goes_on = not refusal.first and evidence is None
        with interrupts_pass():  # remedies may be tried for a minute; the step is undone
            self._explainer.file(refusal.refused, evidence, refusal.attempt, refusal.result, goes_on=goes_on)
        foretold = self._was_foretold(refusal.refused)
        grew = foretold and self._run.foresight.course.has_grown
        self._do(refusal.action, refusal.what, grew=grew, early=foretold)

    def _do(self, action: Action, what: str, *, grew: bool = False, early: bool = False) -> None:
        """What the ladder said."""
        if action == "lower-lr":
            self._reporter.tell("lower-lr", self._recovery.lower_rates())
        elif action == "rollback":
            gone_back = self._recovery.roll_back(self._reporter.step, grew=grew, early=early)
            self._reporter.tell("rollback", gone_back)
            self._run.watcher.forget()
            self._run.foresight.went_back(self._reporter.step)
        elif action == "stop":
            self._stop(what)

    def _stop(self, why: str) -> None:
        """End the run with a clean checkpoint and a message that says what to do next: once, however many optimizers
        of the step would end it.
        """
        if self._stopped is not None and self._stopped[0] == self._reporter.step:
            raise RunStopped(*self._stopped[1:])
        saved, ladder = self._maintenance.clean_checkpoint(), self._recovery.ladder
        message = self._reporter.of_the_end(
            ladder.reason_to_stop(),
            why,
            ladder.counters,
            saved,
            stuck=ladder.is_stuck,
            as_it_is=not self._maintenance.went_back,
        )
        self._stopped = self._reporter.step, message, str(saved) if saved else None
        raise RunStopped(*self._stopped[1:])
