"""WatchedLoop: an ordinary training loop under guard. Its body is the user's own and knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Attempt, Refusal
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.decision_maker import DecisionMaker
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.loop_body import LoopBody, NotRepeatable
from stayfinite.guarding.maintenance import Maintenance
from stayfinite.guarding.refusal_handler import RefusalHandler
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_follower import StepFollower
from stayfinite.guarding.step_owner import NoGradients, StepOwner
from stayfinite.hooks.interrupts import interrupts_wait
from stayfinite.recover.policy import RunStopped
from stayfinite.watch.intercept import Marks, intercept
from stayfinite.watch.risk import calls_closure_once

Batch = TypeVar("Batch")


class WatchedLoader(Generic[Batch]):
    """What `guard.watch(loader)` gives: a loader like the one it was given, whose loops are guarded."""

    def __init__(
        self, loader: Iterable[Batch], guarded: Callable[[Iterable[Batch]], Iterator[Batch]]
    ) -> None:
        self._loader, self._guarded = loader, guarded

    def __iter__(self) -> Iterator[Batch]:
        return self._guarded(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class WatchedLoop:
    """Listens while a loop body runs, and hands what it hears to the decision, or to who repeats a body."""

    def __init__(
        self,
        run: GuardedRun,
        audit: Audit,
        maintenance: Maintenance,
        owner: StepOwner,
        explainer: Explainer,
        refusal_handler: RefusalHandler,
    ) -> None:
        self._run, self._audit, self._maintenance = run, audit, maintenance
        self._owner, self._refusal_handler, self._explainer = owner, refusal_handler, explainer
        self._follower = StepFollower(run, owner, explainer)
        self.decision = DecisionMaker(run, owner, refusal_handler, self._follower, maintenance.position)
        self.listening = False
        self._between = False  # listen between two bodies, too

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """A loop over these batches, listened to for as long as it runs."""
        listening = intercept(self, self._run.state.optimizers, self._run.state.scaler)
        try:
            yield from self.bodies(self._maintenance.batches(loader))
        finally:  # no `with`: Ctrl-C at the very begin of its exit would leave torch as it is now
            try:
                listening.stop()
            except BaseException:
                listening.stop()
                raise

    def bodies(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same where somebody else has the loop's calls brought here."""
        try:
            while True:
                if not self._owner.accumulating:
                    self._maintenance.before_step()  # all state is whole, and the next batch is not fetched yet
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                try:
                    with ExitStack() as body:
                        self._enter(batch, body)
                        body.callback(self._leave)
                        yield batch
                except GeneratorExit:  # the loop was left in this body, often because of what was refused
                    self._conclude_at_once()
                    raise
                refusal = self._take_refusal()
                if refusal is not None:
                    with self._refusal_handler.told_if_a_rank_is_lost(refusal):
                        evidence = yield from self._follower.locate(refusal)
                    self._conclude(refusal, evidence)
        except BaseException:  # the loop was left, or broke off: its dataset may have raised
            self.decision.abandon()
            raise

    def _take_refusal(self) -> Refusal | None:
        refusal, self.decision.refusal = self.decision.refusal, None
        return refusal

    def _conclude(self, refusal: Refusal, evidence: FailedStep | None) -> None:
        evidence = self._refusal_handler.shared(refusal, evidence)
        self._follower.arm(refusal, evidence)
        attempt = refusal.attempt
        try:
            if self._explainer.proves and not attempt.window.framework_steps:
                self._note_body(attempt)
            self._refusal_handler.conclude(refusal, evidence, is_shared=True)
        finally:
            attempt.body = None  # it holds on to all that the loop's function has

    def _note_body(self, attempt: Attempt) -> None:
        """So that it can be run again, as long as the loop waits for its next batch."""
        try:
            attempt.body = LoopBody.running(self._follower)
        except NotRepeatable as reason:
            attempt.not_repeatable = str(reason)

    def _conclude_at_once(self) -> None:
        """A refusal whose batch cannot be handed out again. The loop is over: if this ends the run, its next backward
        pass says so, if there is one (`next(iter(loader))` is a loop for each batch).
        """
        refusal = self._take_refusal()
        if refusal is not None:
            try:  # a framework's steps were run again when they were refused
                self._conclude(refusal, self._follower.locate_framework_steps(refusal))
            except RunStopped as stopped:  # as itself it would keep alive all that its traceback has
                self._run.recovery.ladder.ended = str(stopped), stopped.checkpoint

    def listen_always(self) -> None:
        """Guard updates outside of any loop over batches, too: each is then a step of its own."""
        self._between = self.listening = True
        self._maintenance.before_step()
        self._owner.open_window()

    def end_step(self) -> None:
        """Outside of a loop over batches: an update was made or refused, so what follows belongs to the next step."""
        if self.decision.is_open:
            return
        self._follower.stop()
        refusal = self._take_refusal()
        if refusal is not None:
            self._conclude(refusal, self._follower.locate_framework_steps(refusal))
        else:
            self._maintenance.before_step()
        self._follower.start_if_armed(None)

    def end(self) -> None:
        """No optimizer is to come any more: what was decided last is on record, and a refusal is looked into."""
        self.decision.finish()
        self._follower.stop()
        self._conclude_at_once()

    @contextmanager
    def framework_step(self, again: Callable[[], Any], batch: Any) -> Iterator[None]:
        """Around a framework's own step: forward and backward pass of one micro-batch. `again` runs it once more."""
        if self.replaying or not self.listening:
            if not self.replaying:  # an optimizer evaluates it: the guard makes its step
                self.decision.note_evaluation(again, batch)
            yield
            return
        self.decision.begin_framework_step(self._from_its_beginning(again), batch)
        try:
            yield
        finally:
            self.decision.end_framework_step()

    def _from_its_beginning(self, again: Callable[[], Any]) -> Callable[[], Any]:
        """A step of several optimizers may train one after the other, and is repeated from the middle of one's turn."""
        if len(self._run.state.optimizers) < 2:
            return again
        trained = [(parameter, parameter.requires_grad) for parameter in self._run.state.parameter_names]

        def run() -> Any:
            now = [(parameter, parameter.requires_grad) for parameter, _ in trained]
            _set_trained(trained)
            try:
                return again()
            finally:
                _set_trained(now)

        return run

    @property
    def accumulating(self) -> bool:
        """Some micro-batches of the next update are there."""
        return self._owner.accumulating

    @property
    def replaying(self) -> bool:
        return self._follower.replaying

    @interrupts_wait()
    def _enter(self, batch: Any, body: ExitStack) -> None:
        if self._owner.accumulating:
            self._run.recovery.transaction.mark_batch()
        else:
            self._owner.window = None
        self._owner.open_window().batches.append(batch)
        self._follower.start_if_armed(batch)
        body.enter_context(self._audit.first_forward())
        self.decision.begin_body(batch)
        self.listening = True

    def _leave(self) -> None:
        with interrupts_wait():
            self.decision.finish()
            self._follower.stop()
            self._run.foresight.rest()
            self._owner.rest()
            self.listening = self._between
            self.decision.end_body()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the guard itself runs a step, there is nothing to listen to."""
        was, self.listening = self.listening, False
        try:
            yield
        finally:
            self.listening = was

    # -- what the body does

    def before_backward(self) -> Marks | None:
        return self.decision.before_backward() if self.listening else None

    @interrupts_wait()
    def saw_backward(self, roots: Sequence[Tensor], before: Marks | None) -> bool:
        """Whether it reached a parameter of this run."""
        self._follower.saw_loss(roots[0])
        is_ours = self.listening and before is not None and self.decision.saw_backward(roots, before)
        ended = self._run.recovery.ladder.ended
        if is_ours and ended is not None:
            raise RunStopped(*ended)
        return is_ours

    @interrupts_wait()
    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The last moment at which the gradients are raw; the norm measured here serves the clipping too."""
        window = self._owner.window
        if not self.listening or window is None:
            return None
        state, scaling = self._run.state, self._run.recovery.scaling
        if scaling.on and not any(scaling.is_unscaled(o) for o in state.optimizers):
            self._audit.saw_scaled_clip()
            return None
        state.held_by(state.optimizers)  # parameters added since have their names now
        reading = self._run.watcher.read(list(state.parameter_names))
        same = len(reading.gradients) == len(gradients) and all(
            mine is theirs for mine, theirs in zip(reading.gradients, gradients, strict=True)
        )
        if not same:
            return None  # the loop clips only a part; the gradients are read again at the step
        window.reading = reading
        return reading.as_torch_has_it

    def wants_step(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """The body calls optimizer.step(): do it if the gradients are good."""
        if self.replaying:
            return self._follower.step_in_replay(optimizer, step, closure)
        if not self.listening:
            return step()
        if closure is None and not self.decision.concerns(optimizer):
            with self.decision.cleared_are_hidden():
                return self._step_without_gradients(optimizer, step)
        if closure is None:
            return self._follower.around(lambda update: self._decide(optimizer, update), step)
        if calls_closure_once(optimizer):
            with torch.enable_grad():
                value = closure()
            self._follower.around(lambda update: self._decide(optimizer, update), lambda: step(lambda: value))
            return value
        with self.paused():
            with interrupts_wait():
                value = self.decision.step_with_closure(optimizer, step, closure)
            self._locate_framework_steps()
            return value

    def _step_without_gradients(self, optimizer: Optimizer, step: Callable[..., Any]) -> Any:
        """Nothing to decide, unless other ranks have gradients and wait for this one."""
        if self._run.ranks.together:
            try:
                return self._decide(optimizer, step)
            except NoGradients:
                pass
        return step()

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        """The body calls scaler.step(optimizer): it looks at the gradients once more, which the guard has done."""
        if self.replaying:
            self._follower.scaler_step_in_replay(optimizer)
        elif not self.listening:
            return step()
        else:
            self._decide(optimizer, step)
        return None

    def wants_scaler_update(self, update: Callable[[], None], *, forced: bool) -> None:
        """The body calls scaler.update(): what was refused since the last one is not the scaler's business."""
        if self.replaying or not self.listening:
            update()
        else:
            self._refusal_handler.update_scale(update, forced=forced)

    def _decide(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        with self.paused():
            with interrupts_wait():
                self.decision.decide(optimizer, step)
            self._locate_framework_steps()

    def _locate_framework_steps(self) -> None:
        """At once: later, the framework has counted on, and would run another step."""
        refusal = self.decision.refusal
        if refusal is not None and refusal.attempt.window.framework_steps:
            self._follower.locate_framework_steps(refusal)


def _set_trained(flags: Iterable[tuple[Tensor, bool]]) -> None:
    for parameter, requires_grad in flags:
        parameter.requires_grad = requires_grad
