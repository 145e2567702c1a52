"""StepFollower: a loop's body followed op by op: a refused one once more, or the next ones while they run."""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from stayfinite.findings import Json
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Attempt, Refusal
from stayfinite.guarding.body_replay import BodyReplay
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.locate import Replay, Trace
from stayfinite.guarding.lone_rank import LoneRank, own_gradients
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_owner import StepOwner
from stayfinite.recover.aftermath import Aftermath
from stayfinite.recover.ranks import rank, world_size
from stayfinite.sandbox.fork import Inside, branch, forked
from stayfinite.watch.risk import calls_closure_once

_FOLLOWED = 4
"""How many steps after one that could not be located are followed op by op, at 2.5 to 4 times their cost."""
_MOST_SECONDS, _LEAST_SECONDS, _TIMES_SLOWER = 600.0, 30.0, 60.0
"""How long a repeated body may take: followed op by op, on one thread."""


class StepFollower:
    """Locates what a body did. While it repeats one, the body's calls come here instead of to a decision."""

    def __init__(self, run: GuardedRun, owner: StepOwner, explainer: Explainer) -> None:
        self._run, self._owner, self._explainer = run, owner, explainer
        self._replay: Replay | None = None
        self._replays_update = False
        self._inside: Inside | None = None  # this process is the child in which a body is repeated
        self._ends_when_seen = False  # it is the child in which a framework's step is
        self._armed = 0  # how many of the next steps are followed
        self._located_in_a_row: set[str] = set()  # triggers, since the last update
        self._trace: Trace | None = None
        self._evidence: FailedStep | None = None
        self._located: tuple[Refusal, FailedStep | None] | None = None

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    # -- the next steps, while they run

    def arm(self, refusal: Refusal, evidence: FailedStep | None) -> None:
        """Where nothing was seen of how a step went wrong, the next ones are followed, until one goes wrong again."""
        self._evidence = self._located = None
        trigger = refusal.refused.trigger
        if refusal.first:
            self._located_in_a_row.clear()
        if evidence is not None:
            self._located_in_a_row.add(trigger)
        unknown = trigger not in self._located_in_a_row
        self._armed = _FOLLOWED if unknown and self._explainer.may_follow(refusal) else 0

    def start_if_armed(self, batch: Any) -> None:
        if self._armed and self._trace is None:
            self._armed -= 1
            self._trace = Trace()
            self._trace.start(batch)

    def stop(self) -> None:
        if self._trace is not None:
            self._trace.stop()
            self._trace = None

    def saw_loss(self, loss: Tensor) -> None:
        followed = self._replay or self._trace
        if followed is not None:
            followed.saw_loss(loss)

    def step_is_refused(self) -> None:
        """Keep what was seen of it."""
        if self._trace is not None:
            self._evidence = self._trace.evidence()

    def step_is_applied(self, attempt: Attempt) -> None:
        """Its batch is what a failing one is compared with."""
        self._explainer.saw_healthy(attempt)

    def around(self, decide: Callable[[Callable[..., Any]], Any], step: Callable[..., Any]) -> Any:
        """Let the guard look without being followed, and follow the update that it makes."""
        trace = self._trace
        if trace is None:
            return decide(step)
        with trace.only_looking():
            return decide(trace.followed(step))

    # -- a refused body once more

    def locate(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """What is known of how this step went wrong; if nothing is, its body is given its batches again."""
        if refusal.attempt.window.framework_steps:
            return self.locate_framework_steps(refusal)
        if self._explainer.wants_replay(refusal) and not self._run.ranks.any(self._evidence is not None):
            return (yield from self._in_a_fork(refusal))
        return self._evidence

    def locate_framework_steps(self, refusal: Refusal) -> FailedStep | None:
        """The same where a framework's own steps made the losses: they are run again with the same batches, once.

        Called when the step was refused: what the framework counts has not gone on yet.
        """
        if self._located is None or self._located[0] is not refusal:
            self._located = refusal, self._locate_framework_steps(refusal)
        return self._located[1]

    def _locate_framework_steps(self, refusal: Refusal) -> FailedStep | None:
        steps = refusal.attempt.window.framework_steps
        if not steps or not self._explainer.wants_replay(refusal):
            return self._evidence
        if self._run.ranks.any(self._evidence is not None):
            return self._evidence
        alone = self._repeats_alone
        if alone and refusal.refused.rank not in (None, rank()):
            return None  # what that rank sees, all will know
        again = self._run_again_alone if alone else self._run_again

        def in_child() -> str | None:
            self._ends_when_seen = True
            return _packed(again(refusal))

        child = forked(in_child, _limit(refusal), alone=alone)
        if child.finished:
            return _unpacked(child.value)
        if child.status == "declined" and self._explainer.may_repeat_in_place:
            try:
                return self._run_again(refusal)
            except Exception as error:  # noqa: BLE001 - a replay that fails must not end the training it explains
                child = replace(child, reason=f"{type(error).__name__}: {error}")
        self._run.reporter.note("warning", what=f"the refused step was not replayed: {child.reason}")
        return None

    def _run_again_alone(self, refusal: Refusal) -> FailedStep | None:
        """In a child of one rank of several: until the others are needed."""

        def give_up() -> NoReturn:
            raise _ReplayIsOver

        with own_gradients(self._run.state.models.values(), in_child=True), LoneRank(give_up):
            return self._run_again(refusal)

    def _run_again(self, refusal: Refusal) -> FailedStep | None:
        window, replay_update = refusal.attempt.window, refusal.attempt.update_was_bad
        with self._repeating(refusal) as replay:
            for run, batch in zip(window.framework_steps, window.batches, strict=True):
                with replay.following(batch):
                    try:
                        run()
                    except _ReplayIsOver:
                        break
                    if replay_update and run is window.framework_steps[-1] and replay.evidence() is None:
                        replay.try_update(refusal.attempt.make_update)
            return replay.evidence()

    def _in_a_fork(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """The body once more in a sandboxed child, so that the run itself sees no batch, line or counter twice."""
        alone = self._repeats_alone
        if alone and refusal.refused.rank not in (None, rank()):
            return None  # what that rank sees, all will know
        child = branch(_limit(refusal), alone=alone)
        if isinstance(child, Inside):
            self._inside = child
            found: FailedStep | None = None
            models = self._run.state.models.values()
            try:
                with ExitStack() as without_others:
                    if alone:
                        without_others.enter_context(own_gradients(models, in_child=True))
                        without_others.enter_context(LoneRank(self._end_child))
                    found = yield from self._hand_out_again(refusal)
            finally:  # also when the body raised, or the loop was left
                self._give(found)
        if child.finished:
            return _unpacked(child.value)
        if child.status == "declined" and self._explainer.may_repeat_in_place:
            return (yield from self._hand_out_again(refusal))
        self._run.reporter.note("warning", what=f"the refused step was not replayed: {child.reason}")
        return None

    @property
    def _repeats_alone(self) -> bool:
        """Of several ranks all repeat a step together where they may; else the one with the bad batch, in its child."""
        return world_size() > 1 and not self._explainer.may_repeat_in_place

    def _give(self, found: FailedStep | None) -> NoReturn:
        """In the child: its work is done."""
        assert self._inside is not None
        self._inside.end(_packed(found))

    def _hand_out_again(self, refusal: Refusal) -> Generator[Any, None, FailedStep | None]:
        """Give the body the same batches once more, followed op by op."""
        with self._repeating(refusal) as replay:
            for batch in refusal.attempt.window.batches:
                with replay.following(batch):
                    yield batch
            return replay.evidence()

    @contextmanager
    def _repeating(self, refusal: Refusal) -> Iterator[Replay]:
        """Nothing that is done this time stays."""
        recovery = self._run.recovery
        aftermath = Aftermath(self._run.state, self._run.state.optimizers, keep_scheduler=True)
        recovery.scaling.refused(self._run.state.optimizers, overflow=False)
        self._replay = Replay(recovery, refusal.attempt)
        self._replays_update = refusal.attempt.update_was_bad
        try:
            with (
                self._run.observers.paused(),
                self._replay.prepared(),
                own_gradients(self._run.state.models.values()),
            ):
                yield self._replay
        finally:
            self._replay = None
            self._owner.window = None
            recovery.scaling.settle_refusal()
            aftermath.put_back()

    @contextmanager
    def receiving(self, replay: BodyReplay) -> Iterator[None]:
        """In a child that tries something: what the body does is brought to this replay."""
        before, self._replay = self._replay, replay
        try:
            yield
        finally:
            self._replay = before

    def step_in_replay(self, optimizer: Optimizer, step: Callable[..., Any], closure: Any) -> Any:
        """The repeated body calls optimizer.step(): only an update that was bad in itself is made, and taken back."""
        assert self._replay is not None
        if isinstance(self._replay, BodyReplay):
            return self._replay.wants_update(optimizer, step, closure)
        value = None
        if closure is not None and (calls_closure_once(optimizer) or not self._replays_update):
            with torch.enable_grad():
                value = closure()
        if self._replays_update:
            self._replay.try_update(step if value is None else lambda: step(lambda: value))
        self._end_child_if_seen()
        return value

    def scaler_step_in_replay(self, optimizer: Optimizer) -> None:
        if isinstance(self._replay, BodyReplay):
            self._run.recovery.scaling.unscale([optimizer])
            optimizer.step()
            return
        self._run.recovery.scaling.unscale([optimizer])
        self._end_child_if_seen()

    def _end_child_if_seen(self) -> None:
        """In the child, nothing more of the body is of interest once the failure was seen again."""
        if self._inside is None and not self._ends_when_seen:
            return
        if self._replay is not None and self._replay.evidence() is not None:
            if self._inside is None:
                raise _ReplayIsOver
            self._end_child()

    def _end_child(self) -> None:
        self._give(self._replay.evidence() if self._replay is not None else None)


class _ReplayIsOver(BaseException):
    """What is repeated in a child has shown what was looked for, or cannot go on without the other ranks."""


def _limit(refusal: Refusal) -> float:
    took = time.perf_counter() - refusal.attempt.window.started
    return min(_MOST_SECONDS, _LEAST_SECONDS + _TIMES_SLOWER * took)


def _packed(found: FailedStep | None) -> str | None:
    """As it comes out of a forked child."""
    return base64.b64encode(pickle.dumps(found)).decode() if found is not None else None


def _unpacked(value: Json) -> FailedStep | None:
    found: FailedStep | None = pickle.loads(base64.b64decode(str(value))) if value is not None else None
    return found
