"""Everything that watches a run from outside: one object that installs all observers and collects their facts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import LoadEvent
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.hooks import Listening, listen
from stayfinite.observers.averages import AverageObserver
from stayfinite.observers.checkpoint_files import CheckpointFileObserver
from stayfinite.observers.clips import ClipObserver
from stayfinite.observers.history import RunHistory, here
from stayfinite.observers.optimizers import OptimizerObserver
from stayfinite.observers.resumes import ResumeObserver
from stayfinite.observers.scalers import ScalerObserver
from stayfinite.observers.schedulers import SchedulerObserver
from stayfinite.observers.targets import TargetObserver
from stayfinite.observers.traced_replicas import TracedReplicas
from stayfinite.replay import Tracer
from stayfinite.replay.evidence import operand
from stayfinite.replay.measure import is_bad, is_plain, magnitude, measurable

_BATCH_SHOWN = 8


class RunObservers:
    """Observers of optimizers, scalers, schedulers, clips, loads and batches."""

    def __init__(self, log: RunHistory, tracer: Tracer) -> None:
        self.log, self.tracer = log, tracer
        self.listening = Listening()
        self.optimizers = OptimizerObserver(log, tracer.only_looking)
        self.scalers = ScalerObserver(log, self.optimizers)
        self.optimizers.on_step = self.scalers.optimizer_steps
        self.schedulers = SchedulerObserver(log, self.optimizers, self.scalers.scheduler_stepped)
        self.clips = ClipObserver(log, self.scalers.scale_in, tracer.only_looking)
        self.files = CheckpointFileObserver(log, tracer.only_looking)
        self.resumes = ResumeObserver(log, self.optimizers, tracer.only_looking)
        self.schedulers.on_load = self.resumes.scheduler_loaded
        self.replicas = TracedReplicas(tracer)
        self.targets, self.averages = TargetObserver(tracer.only_looking), AverageObserver(tracer)
        self.optimizers.listeners.append(self.averages)
        self.module_loads: list[LoadEvent] = []
        self._batch: list[weakref.ref[torch.Tensor]] = []
        self.autocast: str | None = None
        self.on_batch: Callable[[Any], None] | None = None

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
            observer.install(self.listening)
        for event, around in (
            ("module_load", self._loading_module),
            ("deepcopy", self._copying),
            ("batch", self._next_batch),
        ):
            self.listening.add(listen(event, around))

    def remove(self) -> None:
        self.listening.stop()
        self.optimizers.remove()

    def _copying(self, original: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(source, *args, **kwargs)
        self.replicas.copied(source, result)
        self.averages.copied(source, result)
        return result

    def _loading_module(
        self, original: Any, module: torch.nn.Module, state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(module, state, *args, **kwargs)
        with self.tracer.only_looking():
            items = state.items() if isinstance(state, Mapping) else ()
            bad = [name for name, value in items if isinstance(value, torch.Tensor) and is_bad(value)]
        self.replicas.loaded(module, state)
        self.resumes.module_loaded()
        missing = tuple(getattr(result, "missing_keys", ()))
        self.module_loads.append(
            LoadEvent("module", here(), self.log.step, missing=missing, nonfinite=tuple(bad[:16]))
        )
        return result

    def _next_batch(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        self._batch = [weakref.ref(tensor) for tensor in tensors[:_BATCH_SHOWN]]
        self.note_batch_size()
        self.tracer.note_batch(batch)
        if self.on_batch is not None:
            self.on_batch(batch)
        return batch

    def batch(self) -> tuple[Operand, ...]:
        """The tensors of the last batch that are still there."""
        tensors = [t for reference in self._data() if (t := reference()) is not None and is_plain(t)]
        with self.tracer.only_looking():
            journal = self.tracer.follower.journal
            return tuple(operand(f"batch[{i}]", t, journal.writer(t), journal) for i, t in enumerate(tensors))

    def _data(self) -> list[weakref.ref[torch.Tensor]]:
        """The tensors of the batch; without a DataLoader, what the models were given."""
        return self._batch or self.tracer.follower.modules.inputs

    def note_batch_size(self) -> None:
        """The magnitude of the batch, for the history."""
        with self.tracer.only_looking():
            sizes = [magnitude(t) for r in self._data() if (t := r()) is not None and measurable(t)]
        self.log.current.input_absmax = max(sizes) if sizes else None

    def complete(self, step: FailedStep) -> FailedStep:
        """The evidence of a step with all that the observers know now."""
        moved = self.optimizers.update_ratios()
        history = step.run.history or self.log.so_far()
        run = replace(
            step.run,
            history=tuple(replace(record, update_ratio=moved.get(record.step)) for record in history),
            first_steps=tuple(self.log.first_steps),
            optimizers=self.optimizers.facts(),
            updates=self.optimizers.audits(),
            scalers=self.scalers.facts(),
            clips=self.clips.facts(),
            loads=(*self.optimizers.load_events(), *self.schedulers.loads, *self.module_loads[-16:]),
            file_loads=tuple(self.files.loads),
            resumes=self.resumes.facts(),
            schedulers=self.schedulers.facts(),
            targets=self.targets.facts(),
            averages=self.averages.facts(),
            rounded=tuple(self.tracer.follower.noticed.rounded),
        )
        return replace(step, run=run)
