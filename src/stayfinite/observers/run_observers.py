"""RunObservers: all that listens to one run, with one history. A guard makes it for its parts, `run` for a script."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import LoadEvent, Place, ReplicaFacts, RoundedIntegers
from stayfinite.findings.subjects.setup import HeldTensor
from stayfinite.hooks import Around, Listening, listen
from stayfinite.observers.averages import AverageObserver
from stayfinite.observers.checkpoint_files import CheckpointFileObserver
from stayfinite.observers.clips import ClipObserver
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.module_loads import modules_in, what_was_loaded
from stayfinite.observers.optimizers import OptimizerObserver
from stayfinite.observers.ownership import Ownership, OwnParts, TrainingParts
from stayfinite.observers.resumes import ResumeObserver
from stayfinite.observers.scalers import ScalerObserver
from stayfinite.observers.schedulers import SchedulerObserver
from stayfinite.observers.targets import TargetObserver
from stayfinite.observers.traced_replicas import TracedReplicas
from stayfinite.replay import Tracer
from stayfinite.replay.living import living_models
from stayfinite.replay.sites import is_ours, own_frame, user_frame
from stayfinite.replay.tracer import unfollowed


class RunObservers:
    """Optimizers, scalers, schedulers, clipping, loads and copies, and the history they all refer to."""

    def __init__(self, ownership: Ownership | None = None, tracer: Tracer | None = None) -> None:
        self.ownership = ownership or Ownership()
        self.tracer = tracer
        self.history = RunHistory()
        self.optimizers = OptimizerObserver(self.history, self.ownership)
        self.scalers = ScalerObserver(self.history, self.optimizers)
        self.optimizers.on_step, self.optimizers.skips = self.scalers.optimizer_steps, self.scalers.skips
        self.schedulers = SchedulerObserver(self.history, self.optimizers, self.scalers.scheduler_stepped)
        self.clips = ClipObserver(self.history, self.ownership, self.scalers.scale_in)
        self.files = CheckpointFileObserver(self.history, self._read_file)
        self.resumes = ResumeObserver(self.history, self.optimizers)
        self.schedulers.on_load = self.resumes.scheduler_loaded
        self.replicas = TracedReplicas(tracer) if tracer is not None else None
        self.targets, self.averages = TargetObserver(), AverageObserver(tracer)
        self.optimizers.listeners.append(self.averages)
        self.module_loads: list[LoadEvent] = []
        self.began: tuple[HeldTensor, ...] = ()  # what looked wrong when the guard was made, before any step
        self._listening = Listening()
        self._paused = 0

    @classmethod
    def of_guard(
        cls, parts: TrainingParts, schedulers: list[Any], averages: list[tuple[Any, torch.nn.Module]]
    ) -> RunObservers:
        """For what a guard was given, from now on; averages with the models that they are of."""
        observers = cls(OwnParts(parts))
        for optimizer in parts.optimizers:
            observers.optimizers.find(optimizer)
        for scheduler in schedulers:
            observers.schedulers.adopt(scheduler, Place())
        if parts.scaler is not None:
            observers.scalers.adopt(parts.scaler)
        for average, model in averages:
            observers.averages.copied(model, getattr(average, "module", average))
        observers.install()
        return observers

    def install(self) -> None:
        for observer in (
            self.optimizers,
            self.scalers,
            self.schedulers,
            self.clips,
            self.files,
            self.targets,
            self.resumes,
        ):
            observer.install(self.hear)
        self.hear("module_load", self._loading_module)
        self.hear("deepcopy", self._copying)
        self.hear("warning", self._warning)
        self.optimizers.listen_to_steps(lambda: self._paused > 0)

    def hear(self, event: str, around: Around) -> None:
        """Bring events of this kind to somebody, those that are this run's, and not while it is paused."""
        owns = self.ownership.of_event

        def heard(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._paused or not owns(event, args, kwargs):
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        self._listening.add(listen(event, heard))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While a step is repeated, nothing of it is part of the run."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def remove(self) -> None:
        self._listening.stop()
        self.optimizers.remove()

    def _copying(self, original: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(source, *args, **kwargs)
        if self.replicas is not None:
            self.replicas.copied(source, result)
        self.averages.copied(source, result)
        return result

    def _warning(
        self,
        original: Any,
        message: Any,
        category: Any,
        filename: str,
        lineno: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """torch names the line that called it, which is ours where we stand between: it is warned at the user's."""
        frame = user_frame(2) if is_ours(filename) else None
        if frame is None:
            return original(message, category, filename, lineno, *args, **kwargs)
        ours = own_frame(filename)
        # that it was said here is no reason to keep it back at another line of the user's
        if ours is not None:
            ours.f_globals.get("__warningregistry__", {}).clear()
        known = frame.f_globals.setdefault("__warningregistry__", {})
        name = frame.f_globals.get("__name__")
        return warnings.warn_explicit(
            message, category, frame.f_code.co_filename, frame.f_lineno, name, known
        )

    def _loading_module(
        self, original: Any, module: torch.nn.Module, state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(module, state, *args, **kwargs)
        with unfollowed():
            event = what_was_loaded(
                module, state if isinstance(state, Mapping) else {}, here(), self.history.step
            )
        if self.replicas is not None:
            self.replicas.loaded(module, state)
        self.resumes.module_loaded(state if isinstance(state, Mapping) else {})
        self.module_loads.append(event)
        return result

    def _read_file(self, result: Any, place: Place) -> None:
        """A file may hold whole models: no `load_state_dict` tells of those."""
        with unfollowed():
            self.module_loads += [
                what_was_loaded(module, module.state_dict(), place, self.history.step)
                for module in modules_in(result)
            ]

    @property
    def heard_nothing(self) -> bool:
        """No step, no optimizer, no load: nothing that a rule could be about."""
        known = (
            self.optimizers.known,
            self.scalers.known,
            self.clips.known,
            self.module_loads,
            self._rounded,
        )
        return not (self.history.step or any(known) or self.files.loads or self.targets.facts())

    def complete(self, step: FailedStep) -> FailedStep:
        """The evidence of a step with all that the observers know now. Of a run that is over, that is more."""
        run = replace(
            step.run,
            history=self.history.as_known_now(
                step.run.history or self.history.until(None if step.run.complete else step.step)
            ),
            first_steps=tuple(self.history.first_steps),
            optimizers=self.optimizers.facts(),
            updates=self.optimizers.audits(),
            scalers=self.scalers.facts(),
            clips=self.clips.facts(),
            loads=self.load_events,
            file_loads=tuple(self.files.loads),
            resumes=self.resumes.facts(),
            schedulers=self.schedulers.facts(),
            targets=self.targets.facts(),
            rounded=self._rounded,
            began=self.began,
        )
        if run.complete:
            run = replace(run, averages=self.averages.facts(), replicas=self._replicas())
        return replace(step, run=run)

    @property
    def load_events(self) -> tuple[LoadEvent, ...]:
        """What `load_state_dict` has brought so far."""
        return (*self.optimizers.load_events(), *self.schedulers.loads, *self.module_loads[-16:])

    @property
    def _rounded(self) -> tuple[RoundedIntegers, ...]:
        return tuple(self.tracer.follower.noticed.rounded) if self.tracer is not None else ()

    def _replicas(self) -> tuple[ReplicaFacts, ...]:
        traced = self.replicas.facts(living_models()) if self.replicas is not None else ()
        return traced or self.optimizers.replicas.facts()
