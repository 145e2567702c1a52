"""WatchedLoop: an ordinary training loop under guard. Its body is the user's own and knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Outcome, Refusal, StepResult
from stayfinite.guarding.audit import Audit
from stayfinite.guarding.explain import Explaining
from stayfinite.guarding.locate import Replay
from stayfinite.guarding.refusals import Refusals
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.updates import Updates
from stayfinite.guarding.upkeep import Upkeep
from stayfinite.recover.aftermath import Aftermath
from stayfinite.recover.policy import RunStopped
from stayfinite.watch.intercept import intercept
from stayfinite.watch.losses import Loss, as_loss

Batch = TypeVar("Batch")


class WatchedLoop:
    """Listens while a loop body runs; afterwards undoes what the body did to a refused step's schedule and averages."""

    def __init__(
        self,
        run: GuardedRun,
        audit: Audit,
        upkeep: Upkeep,
        updates: Updates,
        explaining: Explaining,
        refusals: Refusals,
    ) -> None:
        self._run, self._audit, self._upkeep = run, audit, upkeep
        self._updates, self._explaining, self._refusals = updates, explaining, refusals
        self.listening = False
        self._aftermath: Aftermath | None = None
        self._refusal: Refusal | None = None
        self._replay: Replay | None = None
        self._replays_update = False
        self._trained = False  # the body has run a backward pass or an update
        self._between = False  # listen between two bodies, too

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """A loop over these batches, listened to for as long as it runs."""
        with intercept(self, self._run.state.optimizers, self._run.state.scaler):
            yield from self.bodies(batches)

    def bodies(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same where somebody else has the loop's calls brought here."""
        for batch in batches:
            try:
                with ExitStack() as body:
                    self._enter(batch, body)
                    body.callback(self._leave)
                    yield batch
            except GeneratorExit:  # the loop was left after this body, often because of what was refused
                self._conclude_at_once()
                raise
            refusal, self._refusal = self._refusal, None
            if refusal is not None:
                evidence = None
                if self._explaining.wants_replay(refusal):
                    evidence = yield from self._hand_out_again(refusal)
                self._refusals.conclude(refusal, evidence)

    def _conclude_at_once(self) -> None:
        """A refusal whose batch cannot be handed out again. The loop is over, so nothing is left to be stopped."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            with suppress(RunStopped):
                self._refusals.conclude(refusal, None)

    def listen_always(self) -> None:
        """Guard updates outside of any loop over batches, too: each is then a step of its own."""
        self._between = self.listening = True
        self._upkeep.before_step()
        self._updates.open_window()

    def end_step(self) -> None:
        """Outside of a loop over batches: an update was made or refused, so what follows belongs to the next step."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._refusals.conclude(refusal, None)
        else:
            self._upkeep.before_step()

    def put_back_aftermath(self) -> None:
        """Take back what was done to schedule and averages since the last refusal."""
        if self._aftermath is not None:
            self._aftermath.put_back()
            self._aftermath = None

    def begin_again(self) -> None:
        """Somebody else has skipped this step."""
        self._refusals.mend_buffers()
        self._updates.window = None
        self._updates.open_window()

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    def _hand_out_again(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """Give the body the same batches once more, followed op by op; nothing it does this time stays."""
        recovery = self._run.recovery
        aftermath = Aftermath(self._run.state, keep_scheduler=True)
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
            self._updates.window = None
            recovery.scaling.settle_refusal()
            aftermath.put_back()

    def _enter(self, batch: Any, body: ExitStack) -> None:
        if not self._updates.accumulating:
            self._updates.window = None
            self._upkeep.before_step()
        self._updates.open_window().batches.append(batch)
        body.enter_context(self._audit.first_forward())
        self.listening, self._trained = True, False

    def _leave(self) -> None:
        self.listening = self._between
        if not self._trained:
            self._refusals.mend_buffers()
        self._run.recovery.scaling.settle_refusal()
        self.put_back_aftermath()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the guard itself runs a step, there is nothing to listen to."""
        was, self.listening = self.listening, False
        try:
            yield
        finally:
            self.listening = was

    # -- what the body does

    def saw_backward(self, roots: Sequence[Tensor]) -> None:
        if self._replay is not None:
            self._replay.saw_loss(roots[0])
        if not self.listening:
            return
        self._trained = True
        total = (
            torch.stack([root.detach().sum().float() for root in roots]).sum()
            if len(roots) > 1
            else roots[0].detach()
        )
        scale = self._run.recovery.scaling.scale(total.device)
        window = self._updates.open_window()
        window.losses.append(Loss(total.reshape(()) if scale is None else total.reshape(()) / scale, {}))
        window.reading = None

    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The last moment at which the gradients are raw; the norm measured here serves the clipping too."""
        window = self._updates.window
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

    def wants_step(self, optimizer: Optimizer, step: Callable[[], Any], closure: Any) -> Any:
        """The body calls optimizer.step(): do it if the gradients are good."""
        if self._replay is not None:
            if self._replays_update:
                self._replay.try_update(step)
            return None
        if not self.listening:
            return step()
        if closure is None:
            self._settle(optimizer, lambda: self._updates.make([optimizer], step))
            return None
        value: Any = None

        def run() -> None:
            nonlocal value
            value = step()
            if value is not None:
                self._updates.open_window().losses.append(as_loss(torch.as_tensor(value).detach()))

        self._settle(optimizer, lambda: self._updates.make_then_look([optimizer], run))
        return value

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        """The body calls scaler.step(optimizer): it looks at the gradients once more, which the guard has done."""
        if self._replay is not None:
            self._run.recovery.scaling.unscale([optimizer])
            return None
        if not self.listening:
            return step()
        self._settle(optimizer, lambda: self._updates.make([optimizer], step))
        return None

    def _settle(self, optimizer: Optimizer, make: Callable[[], Outcome]) -> None:
        self._trained = True
        with self.paused():
            result = self._end(make())
        if result.applied is False:
            optimizer._opt_called = True  # type: ignore[attr-defined]  # no scheduler need warn of a skipped step
            hold = self._run.policy.scheduler_on_skip == "hold"
            self._aftermath = Aftermath(self._run.state, keep_scheduler=hold)
        self._updates.open_window()  # a second optimizer's step in the same body is a transaction of its own

    def _end(self, outcome: Outcome) -> StepResult:
        """Apply or refuse, as `Guard.step` does; scaler, scheduler and averages are the body's own to advance."""
        if outcome.trouble is None:
            return self._updates.applied(outcome)
        if self._refusals.is_back_off(outcome):
            return self._refusals.back_off(outcome)
        refused = self._refusals.undo(outcome)
        refusal = self._refusals.answer(refused, outcome)
        earlier, self._refusal = self._refusal, refusal  # it is looked into when the body has ended
        if earlier is not None:  # several updates in one body: only the last can be replayed
            self._refusals.conclude(earlier, None)
        return refusal.result
