"""WatchedLoop: an ordinary training loop under guard. Its body is the user's own and knows nothing of it."""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Outcome, Refusal, StepResult
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.locate import Replay, Trace
from stayfinite.guarding.maintenance import Maintenance
from stayfinite.guarding.refusal_handler import RefusalHandler
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_owner import StepOwner
from stayfinite.recover.aftermath import Aftermath
from stayfinite.recover.policy import RunStopped
from stayfinite.sandbox.fork import Inside, branch
from stayfinite.watch.intercept import Marks, gradient_marks, intercept, reached
from stayfinite.watch.losses import Loss, as_loss
from stayfinite.watch.risk import calls_closure_once

Batch = TypeVar("Batch")
_FOLLOWED = 4
"""How many steps after one that could not be located are followed op by op, at 2.5 to 4 times their cost."""
_MOST_SECONDS, _LEAST_SECONDS, _TIMES_SLOWER = 600.0, 30.0, 60.0
"""How long a repeated body may take: followed op by op, on one thread."""


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


@dataclass(slots=True)
class _Backward:
    """A backward pass that no update has answered yet."""

    loss: Loss
    optimizers: list[Optimizer]  # whose parameters it reached


@dataclass(slots=True)
class _Decision:
    """One answer to one or several losses, for all optimizers that they reached."""

    outcome: Outcome | None  # None: refused
    waiting: list[Optimizer] = field(default_factory=list)  # that have not asked for their step yet


class WatchedLoop:
    """Listens while a loop body runs; afterwards undoes what the body did to a refused step's schedule and averages."""

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
        self._owner, self._explainer, self._refusal_handler = owner, explainer, refusal_handler
        self.listening = False
        self._aftermaths: list[Aftermath] = []
        self._refusal: Refusal | None = None
        self._replay: Replay | None = None
        self._replays_update = False
        self._inside: Inside | None = None  # this process is the child in which a body is repeated
        self._armed = 0  # how many of the next steps are followed op by op
        self._trace: Trace | None = None
        self._evidence: FailedStep | None = None
        self._trained = False  # the body has run a backward pass or an update
        self._begun = False  # a backward pass has begun that no update has answered
        self._decided = False  # the body has asked for an update, and had its answer
        self._between = False  # listen between two bodies, too
        self._batch: Any = None
        self._undecided: list[_Backward] = []
        self._decision: _Decision | None = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """A loop over these batches, listened to for as long as it runs."""
        with intercept(self, self._run.state.optimizers, self._run.state.scaler):
            yield from self.bodies(self._maintenance.batches(loader))

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
                refusal, self._refusal = self._refusal, None
                if refusal is not None:
                    evidence = self._evidence
                    if evidence is None and self._explainer.wants_replay(refusal):
                        evidence = yield from self._in_a_fork(refusal)
                    self._conclude(refusal, evidence)
        except GeneratorExit:
            self._abandon()
            raise

    def _conclude(self, refusal: Refusal, evidence: FailedStep | None) -> None:
        """Where nothing was seen of how the step went wrong, the next ones are followed, until one goes wrong again."""
        self._evidence = None
        self._armed = _FOLLOWED if evidence is None and self._explainer.may_follow(refusal) else 0
        self._refusal_handler.conclude(refusal, evidence)

    def _conclude_at_once(self) -> None:
        """A refusal whose batch cannot be handed out again. The loop is over, so nothing is left to be stopped."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            with suppress(RunStopped):
                self._conclude(refusal, self._evidence)

    def _abandon(self) -> None:
        """The loop was left before the update of its batch: as if that body had not begun."""
        if self._owner.window is not None and (self._begun or not self._decided):
            self._owner.abandon(self._run.state.optimizers if self._begun else ())
        self._owner.window = None
        self._undecided = []

    def listen_always(self) -> None:
        """Guard updates outside of any loop over batches, too: each is then a step of its own."""
        self._between = self.listening = True
        self._maintenance.before_step()
        self._owner.open_window()

    def end_step(self) -> None:
        """Outside of a loop over batches: an update was made or refused, so what follows belongs to the next step."""
        if self._decision is not None and self._decision.waiting:
            return
        self._stop_following()
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._conclude(refusal, self._evidence)
        else:
            self._maintenance.before_step()
        self._follow_if_armed(None)

    def put_back_aftermath(self, optimizers: Sequence[Optimizer] | None = None) -> None:
        """Take back what was done to schedules and averages since their refusals: of these optimizers, or of all."""
        for aftermath in list(self._aftermaths):
            if optimizers is None or any(optimizer in aftermath.optimizers for optimizer in optimizers):
                aftermath.put_back()
                self._aftermaths.remove(aftermath)

    def settle_for_save(self) -> None:
        """For a save in the middle of a body: bring the state to what it will be when the body is over."""
        self._finish_decision()
        for aftermath in self._aftermaths:
            aftermath.put_back()
        self._run.recovery.scaling.settle_refusal(for_now=True)

    def begin_again(self) -> None:
        """Somebody else has skipped this step."""
        self._refusal_handler.mend_buffers()
        self._undecided = []
        self._owner.window = None
        self._owner.open_window()

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    def _in_a_fork(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """The body once more in a sandboxed child, so that the run itself sees no batch, line or counter twice."""
        took = time.perf_counter() - refusal.attempt.window.started
        child = branch(min(_MOST_SECONDS, _LEAST_SECONDS + _TIMES_SLOWER * took))
        if isinstance(child, Inside):
            self._inside = child
            found: FailedStep | None = None
            try:
                found = yield from self._hand_out_again(refusal)
            finally:  # also when the body raised, or the loop was left
                self._give(found)
        if child.finished:
            return pickle.loads(base64.b64decode(str(child.value))) if child.value is not None else None
        if child.status == "declined" and self._explainer.may_repeat_in_place:
            return (yield from self._hand_out_again(refusal))
        self._run.reporter.note("warning", what=f"the refused step was not replayed: {child.reason}")
        return None

    def _give(self, found: FailedStep | None) -> NoReturn:
        """In the child: its work is done."""
        assert self._inside is not None
        self._inside.end(base64.b64encode(pickle.dumps(found)).decode() if found is not None else None)

    def _hand_out_again(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """Give the body the same batches once more, followed op by op; nothing it does this time stays."""
        recovery = self._run.recovery
        aftermath = Aftermath(self._run.state, self._run.state.optimizers, keep_scheduler=True)
        recovery.scaling.refused(overflow=False)
        self._replay = Replay(recovery, refusal.attempt)
        self._replays_update = refusal.attempt.update_was_bad
        try:
            with self._replay.prepared():
                for batch in refusal.attempt.window.batches:
                    with self._replay.following(batch):
                        yield batch
                return self._replay.evidence()
        finally:
            self._replay = None
            self._owner.window = None
            recovery.scaling.settle_refusal()
            aftermath.put_back()

    def _enter(self, batch: Any, body: ExitStack) -> None:
        if self._owner.accumulating:
            self._run.recovery.transaction.mark_batch()
        else:
            self._owner.window = None
        self._owner.open_window().batches.append(batch)
        self._batch = batch
        self._follow_if_armed(batch)
        body.enter_context(self._audit.first_forward())
        self.listening, self._trained, self._decided = True, False, False
        self._begun = bool(self._undecided)

    def _follow_if_armed(self, batch: Any) -> None:
        if self._armed and self._trace is None:
            self._armed -= 1
            self._trace = Trace()
            self._trace.start(batch)

    def _stop_following(self) -> None:
        if self._trace is not None:
            self._trace.stop()
            self._trace = None

    def _leave(self) -> None:
        self._finish_decision()
        self._stop_following()
        self._run.foresight.rest()
        self.listening = self._between
        if not self._trained:
            self._refusal_handler.mend_buffers()
        if self._aftermaths:
            self._refusal_handler.settle_scale()
        self.put_back_aftermath()
        self._batch = None

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
        if not self.listening:
            return None
        self._begun = True
        optimizers = self._run.state.optimizers
        marks = gradient_marks(optimizers)
        if self._undecided:
            self._drop_cleared([o for o, own in zip(optimizers, marks, strict=True) if not any(own)])
        return marks

    def _drop_cleared(self, cleared: list[Optimizer]) -> None:
        """Losses whose gradients the body has thrown away are in no update."""
        gone = [b for b in self._undecided if all(o in cleared for o in b.optimizers)]
        window = self._owner.window
        if gone and window is not None:
            self._undecided = [b for b in self._undecided if b not in gone]
            window.losses = [loss for loss in window.losses if not any(loss is b.loss for b in gone)]

    def saw_backward(self, roots: Sequence[Tensor], before: Marks | None) -> None:
        """A backward pass is over. One that reached none of our parameters is another model's."""
        followed = self._replay or self._trace
        if followed is not None:
            followed.saw_loss(roots[0])
        if not self.listening or before is None:
            return
        optimizers = reached(self._run.state.optimizers, before)
        if not optimizers:
            return
        self._finish_decision()
        self.put_back_aftermath(optimizers)
        self._trained = True
        total = (
            torch.stack([root.detach().sum().float() for root in roots]).sum()
            if len(roots) > 1
            else roots[0].detach()
        )
        scale = self._run.recovery.scaling.scale(total.device)
        loss = Loss(total.reshape(()) if scale is None else total.reshape(()) / scale, {})
        self._undecided.append(_Backward(loss, optimizers))
        window = self._owner.open_window()
        window.losses.append(loss)
        window.reading = None

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
        return reading.total

    def wants_step(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """The body calls optimizer.step(): do it if the gradients are good."""
        if self._replay is not None:
            return self._step_in_replay(optimizer, step, closure)
        if not self.listening or (closure is None and not _has_gradients(optimizer)):
            return step()
        if self._trace is not None and closure is None:
            trace = self._trace
            with trace.only_looking():
                return self._decide(optimizer, trace.followed(step))
        value: Any = None
        if closure is not None and calls_closure_once(optimizer):
            with torch.enable_grad():
                value = closure()
            self._decide(optimizer, lambda: step(lambda: value))
        elif closure is None:
            self._decide(optimizer, step)
        else:
            value = self._step_with_closure(optimizer, step, closure)
        return value

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        """The body calls scaler.step(optimizer): it looks at the gradients once more, which the guard has done."""
        if self._replay is not None:
            self._run.recovery.scaling.unscale([optimizer])
            self._end_child_if_seen()
            return None
        if not self.listening:
            return step()
        self._decide(optimizer, step)
        return None

    def _end_child_if_seen(self) -> None:
        """In the child, nothing more of the body is of interest once the failure was seen again."""
        if self._inside is not None and self._replay is not None:
            found = self._replay.evidence()
            if found is not None:
                self._give(found)

    def _step_in_replay(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        assert self._replay is not None
        value = None
        if closure is not None and calls_closure_once(optimizer):
            with torch.enable_grad():
                value = closure()
        if self._replays_update:
            self._replay.try_update(step if value is None else lambda: step(lambda: value))
        self._end_child_if_seen()
        return value

    # -- one loss, one decision

    def _decide(self, optimizer: Optimizer, step: Callable[[], Any]) -> None:
        """Make the update, or do not: as was decided when another optimizer of the same losses stepped, or now."""
        self._trained = True
        decision = self._decision
        try:
            with self.paused():
                if decision is not None and optimizer in decision.waiting:
                    decision.waiting.remove(optimizer)
                    if decision.outcome is not None:
                        self._settle(self._owner.apply_also(decision.outcome, optimizer, step))
                else:
                    self._finish_decision()
                    self._settle(self._look(optimizer, step))
        except BaseException:
            self._decision = None  # the update broke off, and was taken back
            raise
        if self._decision is not None and self._decision.outcome is None:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # no scheduler need warn of a skipped step
        if self._decision is not None and not self._decision.waiting:
            self._finish_decision()

    def _look(self, optimizer: Optimizer, step: Callable[[], Any]) -> Outcome:
        """Judge the losses that reached this optimizer, for all optimizers that they reached."""
        ours = [backward for backward in self._undecided if optimizer in backward.optimizers]
        self._undecided = [backward for backward in self._undecided if backward not in ours]
        all_of_them = [o for backward in ours for o in backward.optimizers]
        beside = [o for o in self._run.state.optimizers if o is not optimizer and o in all_of_them]
        losses = [backward.loss for backward in ours] if ours else None
        outcome = self._owner.look(self._owner.gather([optimizer], step, beside, losses))
        self._decision = _Decision(outcome, beside)
        return outcome if outcome.trouble else self._owner.apply(outcome)

    def _settle(self, outcome: Outcome) -> None:
        """An update that is good stays; it is on record when all of its optimizers have stepped."""
        assert self._decision is not None
        self._maintenance.position.waiting, self._decided, self._begun = False, True, bool(self._undecided)
        if outcome.trouble is None:
            self._decision.outcome = outcome
            return
        self._decision.outcome = None
        self._refuse(outcome)
        hold = self._run.policy.scheduler_on_skip == "hold"
        self._aftermaths.append(Aftermath(self._run.state, outcome.attempt.group, keep_scheduler=hold))
        self._go_on_in_body()

    def _finish_decision(self) -> None:
        """Nothing more belongs to the last decision: what was applied is on record now."""
        decision, self._decision = self._decision, None
        if decision is not None and decision.outcome is not None:
            self._owner.applied(decision.outcome)
            self._go_on_in_body()

    def _go_on_in_body(self) -> None:
        """A second update in the same body is a transaction of its own, about the same batch."""
        window = self._owner.open_window()
        if self._batch is not None:
            window.batches.append(self._batch)

    def _step_with_closure(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """An optimizer that evaluates the loss as often as it likes: what it made is looked at afterwards."""
        self._finish_decision()
        self._trained = True
        window, value = self._owner.open_window(), None

        def noting() -> Any:
            loss = closure()
            if loss is not None:
                window.losses.append(as_loss(torch.as_tensor(loss).detach()))
            return loss

        def run() -> None:
            nonlocal value
            value = step(noting)

        with self.paused():
            outcome = self._owner.make_then_look([optimizer], run)
            self._undecided = []
            self._decision = _Decision(outcome)
            self._settle(outcome)
        self._finish_decision()
        return value

    def _refuse(self, outcome: Outcome) -> StepResult:
        """Refuse, as `Guard.step` does; scaler, scheduler and averages are the body's own to advance."""
        if self._refusal_handler.is_back_off(outcome):
            return self._refusal_handler.back_off(outcome)
        if self._trace is not None:
            self._evidence = self._trace.evidence()
        refused = self._refusal_handler.undo(outcome)
        refusal = self._refusal_handler.answer(refused, outcome)
        earlier, self._refusal = self._refusal, refusal  # it is looked into when the body has ended
        if earlier is not None:  # several updates in one body: only the last can be replayed
            self._refusal_handler.conclude(earlier, None)
        return refusal.result


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
