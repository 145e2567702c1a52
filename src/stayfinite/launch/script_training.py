"""ScriptTraining: makes a guard when a script begins to train, and brings the script's own calls to it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data import get_worker_info

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guard import StepResult
from stayfinite.guarding.framework_steps import around_framework_step
from stayfinite.guarding.loop import WatchedLoop
from stayfinite.hooks import FRAMEWORK_STEPS, imported, listen_if_lost, listen_to
from stayfinite.launch.failure_detector import FailureDetector
from stayfinite.launch.loader_steps import LoaderSteps
from stayfinite.launch.options import Options
from stayfinite.launch.run_folder import RunFolder
from stayfinite.launch.script_guard import ScriptGuard
from stayfinite.launch.training_parts import training_parts
from stayfinite.launch.training_thread import TrainingThread
from stayfinite.launch.unguarded_ranks import obstacle_of_ranks
from stayfinite.observers.run_observers import RunObservers
from stayfinite.recover import Action, Policy
from stayfinite.recover.ladder import Counters
from stayfinite.recover.ranks import rank, world_size
from stayfinite.recover.roll_call import trained_by_all
from stayfinite.recover.state import TrainingState
from stayfinite.recover.wrapped import optimizer_of
from stayfinite.watch.intercept import around_step, intercept, roots_of


class ScriptTraining:
    """Batches of a DataLoader mark where a step begins. Without one, a step ends with its update."""

    def __init__(
        self,
        observers: RunObservers,
        detector: FailureDetector,
        policy: Policy | None,
        options: Options,
        folder: RunFolder,
        thread: TrainingThread,
        launched: int = 1,
    ) -> None:
        """`policy`: None refuses nothing. `thread`: who trains. `launched`: how many ranks were started so."""
        self._observers, self._detector, self._tracer = observers, detector, detector.tracer
        self._policy, self._options, self._folder = policy, options, folder
        self._thread, self._launched = thread, launched
        self._trained_elsewhere = False  # another thread updates what is guarded
        self._guard: ScriptGuard | None = None
        self._loop: WatchedLoop | None = None
        self._listening = ExitStack()
        self._first_forward: Any = None
        self._first_steps = ExitStack()  # of optimizers that no guard has yet
        self._loaders = LoaderSteps(self._begun_loop, detector)
        self._frameworks: set[str] = set()  # events of frameworks that are heard
        self.refused = self.mended = 0
        self.actions: dict[int, str] = {}  # by step
        self.refused_for: dict[int, str] = {}  # what was bad (a trigger), by step
        self.bad_ranks: dict[int, int | None] = {}  # by step
        self.world_size, self.together = 1, False
        self.drifts: list[FailedStep] = []  # replicas that came apart
        self.not_located = ""  # why the last refused step was not, where the run ended with it
        self.counts = Counters()
        self.obstacle: str | None = None
        self.beside: str | None = None  # what of the script is not guarded

    def install(self) -> None:
        self._observers.hear("batch", self._loaders.next_batch)
        self._observers.hear("backward", self._first_backward)
        self._observers.hear("scaler_step", self._scaler_step)
        self._observers.hear("file_save", self._saving)
        self._observers.optimizers.on_created = self._optimizer_was_made
        self._observers.scalers.on_skip = self._scaler_skipped
        self._observers.schedulers.on_stepped = self._scheduler_stepped
        self._wait_for_forward()

    def remove(self) -> None:
        """The script is over: nothing is guarded any more."""
        self._forget()
        self._first_steps.close()
        if self._first_forward is not None:
            self._first_forward.remove()

    @property
    def state(self) -> TrainingState | None:
        """What is trained, once there is something."""
        return self._guard.state if self._guard is not None else None

    def remarks(self, *, weights_are_finite: bool) -> Iterator[str]:
        """What the reader of a report should know."""
        if self.obstacle is not None:
            yield f"The run was watched but not guarded: {self.obstacle}"
        elif self.refused:
            counts = self.counts
            # two optimizers may be refused in the body that ends the run: the second is counted, and told by nobody
            number = max(self.refused, counts.skipped)
            refused = "1 update was" if number == 1 else f"{number} updates were"
            yield (
                f"{refused} not applied{'; the trained weights are finite' if weights_are_finite else ''}. "
                f"Applied {counts.applied}, skipped {counts.skipped}, rolled back {counts.rolled_back}."
            )
        if self.beside is not None:
            yield self.beside
        if self._thread.others_train and self.obstacle is None:
            yield "Another thread of the script trains, too: its steps were not watched."
        if self.mended:
            yield (
                "Buffers that forward passes without an update after them had left with NaN or Inf are as they were "
                "before."
            )

    # -- when there is something to guard

    def _wait_for_forward(self) -> None:
        """The last moment before a step can change anything is the first forward pass."""
        if self._first_forward is None:
            self._first_forward = register_module_forward_pre_hook(self._forward)

    def _forward(self, module: Any, args: Any) -> None:
        if torch.is_grad_enabled():  # without: somebody looks at a model, perhaps in a thread of its own
            self._begin()
            if self._thread.is_this:
                self._tracer.follow_this_thread()

    def _optimizer_was_made(self) -> None:
        """Another optimizer, another set of things to guard; nothing of the old one is kept alive."""
        if self._guard is not None:
            self._forget()
            gc.collect()  # models that the script has dropped must not live on in a cycle of references
        self._tracer.follow_this_thread()
        self._wait_for_forward()
        self._wait_for_steps()
        self._hear_frameworks()

    def _wait_for_steps(self) -> None:
        """A step that is given a closure begins before the forward pass inside of it."""
        self._first_steps.close()
        for optimizer in self._optimizers():
            self._first_steps.enter_context(
                listen_to(optimizer, "step", partial(self._first_step, weakref.ref(optimizer)))
            )

    def _first_step(self, stepped: weakref.ref[Optimizer], original: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = stepped()
        if (
            self._guard is None
            and self._thread.is_this
            and optimizer is not None
            and (args or kwargs.get("closure") is not None)
        ):
            self._begin()
            if self._loop is not None:
                return around_step(self, optimizer)(original, *args, **kwargs)
        return original(*args, **kwargs)

    def _optimizers(self) -> list[Optimizer]:
        """Those of the script that are alive."""
        known = (seen.optimizer() for seen in self._observers.optimizers.known.values())
        return [
            optimizer for optimizer in known if optimizer is not None and self._thread.may_train(optimizer)
        ]

    def _hear_frameworks(self) -> None:
        """Those that the script has imported by now."""
        for event in (*FRAMEWORK_STEPS, "accelerate_loader"):
            if event not in self._frameworks and imported(event):
                self._frameworks.add(event)
                around = self._framework_step if event in FRAMEWORK_STEPS else self._loaders.of_framework
                self._observers.hear(event, around)

    def _begun_loop(self) -> WatchedLoop | None:
        self._begin()
        return self._loop

    def _begin(self) -> None:
        optimizers = self._optimizers()
        if self._guard is not None or not optimizers or self.obstacle is not None:
            return
        if get_worker_info() is not None:
            return  # a transform that is a module, in a worker of a DataLoader: nothing is trained there
        if not self._thread.claim():
            return
        if self._first_forward is not None and not self._options.traced:
            self._first_forward.remove()
            self._first_forward = None
        self._tracer.follow_this_thread()
        with self._tracer.only_looking():
            try:
                self._make_guard(optimizers)
            except (ValueError, TypeError, OSError) as error:
                self.obstacle = f"{type(error).__name__}: {error}"
        self._first_steps.close()  # after the guard listens: who holds on to `optimizer.step` calls the guard, too

    def _make_guard(self, optimizers: list[Optimizer]) -> None:
        optimizers = self._of_all_ranks(optimizers)
        schedulers = [s for w in self._observers.schedulers.known if (s := w.scheduler()) is not None]
        models, averages = training_parts(optimizers)
        refuses = self._policy is not None
        self.world_size = world_size()
        self.obstacle = obstacle_of_ranks(self._launched, models.values())
        if self.obstacle is not None:
            return
        guard = ScriptGuard(
            self._observers,
            next(iter(models.values())) if len(models) == 1 else models,
            optimizers,
            refuses=refuses,
            scheduler=[s for s in schedulers if optimizer_of(s) in optimizers],
            ema=averages,
            clip_norm=self._options.clip,
            run_dir=self._folder.open() if refuses else self._folder.start,
            policy=self._policy or Policy(spikes="ignore"),
            scheduler_interval="epoch",  # the script advances them
            locate=self._options.locate != "off",
            check_every=100 if refuses else 0,
            snapshot_every=100 if refuses else 0,
            prove="off",  # when the script is over, in a process of its own
        )
        guard.explainer.tell, guard.explainer.tell_mended = self._refused, self._mended
        guard.explainer.tell_bad_state = self._state_was_bad
        guard.explainer.tell_drift = self.drifts.append
        self._guard, self._loop = guard, guard.loop
        self._detector.guarded = True
        self._listening.enter_context(intercept(self, optimizers, None))
        self._loop.listen_always()

    def _of_all_ranks(self, optimizers: list[Optimizer]) -> list[Optimizer]:
        """Beside a model that all ranks train, one that torch does not spread over them may be this rank's alone."""
        if world_size() == 1:
            return optimizers
        shared = [o for o in optimizers if trained_by_all(training_parts([o])[0].values())]
        if not shared or len(shared) == len(optimizers):
            return optimizers
        kinds = ", ".join(type(o).__name__ for o in optimizers if o not in shared)
        self.beside = (
            f"{kinds} trains outside of DistributedDataParallel, beside a model inside: it was not guarded."
        )
        return shared

    def _forget(self) -> None:
        self._listening.close()
        if self._guard is None:
            return
        self._loaders.leave()
        if self._loop is not None:
            self._loop.end()
        self.counts.add(self._guard.counters)
        self._guard.close()
        self._observers.history.guarded = self._detector.guarded = False
        self._loaders.forget()
        self._guard = self._loop = None

    # -- what the script does

    def _framework_step(self, original: Any, owner: Any, *args: Any, **kwargs: Any) -> Any:
        self._begin()
        if self._loop is None:
            return original(owner, *args, **kwargs)
        return around_framework_step(self._loop, original, owner, *args, **kwargs)

    def _first_backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        """Of a script that trains tensors without a module: the guard is made now, too late to listen to this pass."""
        if self._guard is None:
            self._begin()
            if self._loop is not None:
                before = self.before_backward()
                result = original(tensors, *args, **kwargs)
                self.saw_backward(roots_of(tensors), before)
                return result
        return original(tensors, *args, **kwargs)

    @property
    def _loop_of_this_thread(self) -> WatchedLoop | None:
        """What hears the calls that are made here; None in another thread than the one that trains."""
        if not self._thread.is_this:
            return None
        if self._trained_elsewhere and self._guard is not None:
            self._forget()
            self.obstacle = "several of its threads train the same parameters"
        return self._loop

    def before_backward(self) -> Any:
        loop = self._loop_of_this_thread
        return loop.before_backward() if loop is not None else None

    def saw_backward(self, roots: Sequence[Tensor], before: Any) -> None:
        if self._loop is not None and self._thread.is_this:
            with self._tracer.only_looking():
                if not self._loaders.drive:
                    self._loop.decision.put_back_aftermath()
                reached = self._loop.saw_backward(roots, before)
            if not reached and not self._loop.replaying:
                self._detector.check_losses(roots)  # of tensors that no optimizer holds

    def saw_clip(self, gradients: Sequence[Tensor]) -> Tensor | None:
        if self._loop is None or self._tracer.active or not self._thread.is_this:
            return None
        return self._loop.saw_clip(gradients)

    def wants_step(self, optimizer: Optimizer, step: Callable[[], Any], closure: Any) -> Any:
        loop = self._loop_of_this_thread
        if not self._thread.is_this:
            self._trained_elsewhere = True
        if loop is None or self._observers.scalers.skips(optimizer):
            return step()
        with self._tracer.only_looking():
            evaluate = partial(self._traced, closure) if closure is not None else None
            value = loop.wants_step(optimizer, lambda *given: self._traced(partial(step, *given)), evaluate)
            if not self._loaders.drive:
                loop.end_step()
        return value

    def wants_scaler_step(self, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
        return step()  # the scaler looks for itself; if it finds nothing it calls optimizer.step

    def wants_scaler_update(self, update: Callable[[], None], *, forced: bool) -> None:
        update()

    def _scheduler_stepped(self, scheduler: Any, with_every_update: bool) -> None:
        """After a refused update one of the update is taken back at once: the script may end with it, or save it.

        One of an epoch stays, where no batch ends the step."""
        loop = self._own_loop
        if loop is not None and (with_every_update or not self._loaders.drive):
            loop.decision.saw_schedule(scheduler, with_every_update)

    def _saving(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """The same for averages: what is saved is as it will be when the next step begins, if one does."""
        if (loop := self._own_loop) is not None:
            loop.decision.hold_aftermath()
        return original(*args, **kwargs)

    @property
    def _own_loop(self) -> WatchedLoop | None:
        """The script's own steps are being made, none of them once more."""
        return self._loop if self._loop is not None and not self._loop.replaying else None

    def _scaler_step(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Accelerate puts a step of its own in the place of the optimizer's while a scaler steps it."""
        with listen_if_lost(optimizer, "step", around_step(self, optimizer)):
            return original(scaler, optimizer, *args, **kwargs)

    def _traced(self, step: Callable[[], Any]) -> Any:
        with self._tracer.following_again():
            return step()

    def _scaler_skipped(self, optimizer: Optimizer, loss_was_bad: bool) -> None:
        """The scaler refused the step itself; buffers that its forward pass made bad are put back."""
        loop = self._loop
        if loop is not None and not loop.replaying:
            with self._tracer.only_looking():
                loop.decision.skipped_by_scaler(optimizer, self._skipped_in_vain)
        elif loop is None and loss_was_bad:
            self._skipped_in_vain("loss", "skip")

    def _skipped_in_vain(self, what: str, action: Action) -> None:
        """The scaler has skipped a step that no smaller scale will help."""
        step = self._observers.history.recent[-1].step
        self.refused += 1
        self.actions[step] = action
        self.bad_ranks[step] = rank() if self.world_size > 1 else None
        self._detector.step_was_skipped(what, step)

    def _mended(self) -> None:
        """A step that was not applied had left bad buffers."""
        self.mended += 1
        self._detector.buffers_were_bad(self._observers.history.step)

    def _state_was_bad(self) -> None:
        """Found by a look at all state: the steps since the last one left it so."""
        self._detector.buffers_were_bad(self._observers.history.step)

    def _refused(
        self, refused: FailedStep, evidence: FailedStep | None, result: StepResult, not_located: str
    ) -> None:
        self.refused += 1
        self.not_located = not_located or self.not_located
        self.actions[result.step] = result.action
        self.refused_for[result.step] = refused.trigger
        if evidence is None and refused.norm_overflowed and refused.trigger == "gradient":
            evidence = refused  # no value is bad, so there is no birth to look for
        known = refused.rank if evidence is None or refused.rank is not None else evidence.rank
        self.bad_ranks[result.step] = known
        self.together = self._guard is not None and self._guard.ranks.together
        self._detector.step_was_refused(refused.trigger, result.step, evidence)
