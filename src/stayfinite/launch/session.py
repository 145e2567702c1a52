"""Session: one run of a script under watch, from the first op to the written incidents."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from stayfinite.findings import Incident
from stayfinite.findings.incident import TRIGGERS
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place, RunRecord
from stayfinite.hooks import listen
from stayfinite.launch import state_scan
from stayfinite.launch.file_changes import FileChanges
from stayfinite.launch.keeping import Keeper
from stayfinite.launch.observers import Observers
from stayfinite.launch.options import Options
from stayfinite.launch.run_folder import RunFolder
from stayfinite.launch.run_log import RunLog
from stayfinite.launch.script import Outcome, without_our_frames
from stayfinite.launch.suspicions import Suspicion
from stayfinite.launch.watch import Watch
from stayfinite.recover import Policy
from stayfinite.replay import Tracer
from stayfinite.replay.incident import to_incident
from stayfinite.replay.modules import living_models
from stayfinite.replay.sites import USER, kind_of_file
from stayfinite.watch.environment import environment


class Session:
    """Watches a run. `start`, then the script, then `finish`."""

    def __init__(self, options: Options, files: FileChanges | None = None) -> None:
        self.options, self._files = options, files
        self.log = RunLog()
        self.tracer = Tracer()
        self.observers = Observers(self.log, self.tracer)
        self.watch = Watch(self.observers)
        self.folder = RunFolder(options.run_dir)
        self.keeper = self._make_keeper()

    def _make_keeper(self) -> Keeper | None:
        """Who refuses bad steps. A run that is traced from its first op is only watched, as is `--policy watch`."""
        options = self.options
        if options.policy == "watch" or options.traced:
            return None
        policy = Policy.named("default" if options.policy == "recover" else options.policy or "skip")
        if options.policy != "recover":
            policy = replace(
                policy, max_rollbacks=0
            )  # learning rate and order of the data are the script's own
        if options.policy is None:
            policy = replace(
                policy, spikes="ignore"
            )  # a script that asked for nothing keeps its healthy steps
        return Keeper(self.observers, self.watch, policy, options, self.folder)

    def start(self) -> None:
        self.observers.install()
        self.watch.install()
        if self.keeper is not None:
            self.keeper.install()
        if self._files is not None:
            self.observers.listening.add(listen("file_save", self._saving))
        if self.options.traced and self.options.trace_from_step:
            self.tracer.listen_to_optimizers()
        elif self.options.traced or self.options.locate != "off":
            self.tracer.start()
        self._inner_after_step = self.observers.optimizers.after_step
        self.observers.optimizers.after_step = self._after_step

    def _saving(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        """It writes with compiled code, of which python does not tell."""
        if self._files is not None:
            self._files.about_to_write(f)
        return original(obj, f, *args, **kwargs)

    def _after_step(self, optimizer: Optimizer) -> None:
        if self._inner_after_step is not None:
            self._inner_after_step(optimizer)
        options = self.options
        if not options.traced and self.tracer.active:
            # A script that steps an optimizer is a training loop: from here on watching is enough, and a failure
            # is located by a second run. A script without steps is traced to its end.
            self.tracer.stop(inside_optimizer_hook=True)
        elif options.trace_from_step is not None and self.log.step >= options.trace_from_step:
            self.tracer.start()
        if options.stop_after_step is not None and self.log.step > options.stop_after_step:
            os._exit(0)  # through the replaced _exit: what was found is written first

    def finish(self, outcome: Outcome) -> list[Incident]:
        """Judge what was seen and say what failed."""
        traced = self.tracer.active
        self.watch.note_arrivals()
        self.watch.note_raised()
        if outcome.error is not None and not outcome.interrupted:
            self._note_uncaught(outcome.error)
        if traced:
            self.watch.note_results()
        self.tracer.stop()
        if self.keeper is not None:
            self.keeper.remove()
        self.observers.remove()
        gc.collect()  # a model that the script let go of is no longer part of its state
        self._note_poisoned_state()
        failed = self.failures()
        cut_short = self.options.stop_after_step is not None and self.log.step < self.options.stop_after_step
        found = [self._incident(suspicion) for suspicion in failed]
        if not found and not cut_short:  # a second run that ended early says nothing of the whole
            found = [self._silent()]
        found += [self._incident(suspicion, handled=True) for suspicion in self.watch.suspicions.handled()]
        return [incident for incident in found if incident is not None][: self.options.max_incidents]

    def close(self, incidents: list[Incident]) -> None:
        """Say in the incidents what was done about them, and keep the folder of the run if it is worth keeping."""
        for incident in incidents:
            if self.keeper is not None and incident.step in self.keeper.actions:
                incident.action = self.keeper.actions[incident.step]
        self.folder.close(keep=self.keeper is not None and self.keeper.refused > 0)

    @property
    def most_refused(self) -> bool:
        """Fewer updates were applied than an exit code of 0 allows."""
        counts = self.keeper.counts if self.keeper is not None else None
        asked = counts.applied + counts.skipped if counts is not None else 0
        return counts is not None and asked > 0 and counts.applied < self.options.fail_under * asked

    def failures(self) -> list[Suspicion]:
        return self.watch.suspicions.failures(trained=self.log.optimizer_steps > 0)

    @property
    def needs_second_run(self) -> bool:
        """A failure was seen while nothing was traced, or came into the step that was from somewhere else."""
        return bool(self._unexplained())

    def _unexplained(self) -> list[Suspicion]:
        return [s for s in self.failures() if s.evidence is None or s.comes_from_outside]

    @property
    def failing_step(self) -> int:
        """The last step at which an untraced failure was first seen."""
        return max((s.step for s in self._unexplained()), default=self.log.step)

    @property
    def seconds_to_failure(self) -> float:
        return max((s.seconds for s in self._unexplained()), default=0.0)

    def elapsed(self, step: int) -> float:
        """How long after the start a failing step was seen."""
        return max((s.seconds for s in self.watch.suspicions.all if s.step == step), default=0.0)

    def unlocated(self, reason: str = "", *, reproduced: bool | None = None) -> list[Incident]:
        """Failures without a birth, from what was watched alone; `reason` is why they were not located."""
        found = []
        for suspicion in self.failures():
            if suspicion.evidence is None:
                trigger = suspicion.kind if suspicion.kind in TRIGGERS else "parameter"
                step = FailedStep(
                    suspicion.step,
                    "state",
                    trigger,
                    RunRecord(history=tuple(self.log.history)),
                    reproduced=reproduced,
                    state=self._state,
                )
                step = self.observers.complete(step)
                incident = to_incident(step, explain(step), environment(torch.device("cpu")))
                incident.not_located = reason
                found.append(incident)
        return found

    def remarks(self) -> Iterator[str]:
        """What the reader of a report should know besides the incidents."""
        if self.tracer.follower.trouble:
            yield "The tracer met a problem of its own: " + self.tracer.follower.trouble[-1].strip()
        if self.keeper is not None:
            finite = not any(tensor.owner == "parameter" for tensor in self._state)
            yield from self.keeper.remarks(weights_are_finite=finite)

    def _note_uncaught(self, error: BaseException) -> None:
        if self.observers.files.raised(error):
            return  # a damaged file is a failure by itself, and no value is to blame
        place = place_of(error)
        failure = Failure(type(error).__name__, str(error), place)
        for suspicion in self.watch.suspicions.all:
            if suspicion.caught and suspicion.evidence is not None:
                suspicion.caught, suspicion.progress = False, False
                suspicion.evidence = replace(suspicion.evidence, failure=failure)
                return
        if not self.tracer.active:
            if _is_about_values(error):
                self.watch.suspicions.add(Suspicion("exception", self.log.step, None))
            return
        evidence = self.tracer.failure_of(failure)
        if evidence is not None and evidence.birth is not None and evidence.birth.transition != "deliberate":
            run = RunRecord(history=self.log.so_far())
            evidence = replace(evidence, step=self.log.step, run=run)
            self.watch.suspicions.add(Suspicion("exception", self.log.step, evidence))
            return
        evidence = FailedStep(self.log.step, "forward", "exception", failure=failure)
        if explain(evidence):  # no bad value, but a rule knows the error
            self.watch.suspicions.add(Suspicion("exception", self.log.step, evidence))

    def _note_poisoned_state(self) -> None:
        """Weights that are bad at the end, however they became so, are a failure."""
        self._state = state_scan.scan(self.observers.optimizers, self.tracer, self.log.step)
        trained = [t for t in self._state if t.owner in ("parameter", "optimizer state") and t.nan]
        kept = [t for t in self._state if t.owner == "average" or "running_" in t.name]
        if kept and self.watch.suspicions.outlasts():
            return  # the script dropped a bad step, and its traces are still there
        if trained and not self.watch.suspicions.all:
            self.watch.suspicions.add(Suspicion("parameter", self.log.step, None, touched_state=True))

    def _incident(self, suspicion: Suspicion, *, handled: bool = False) -> Incident | None:
        if suspicion.evidence is None:
            return None
        step = self.observers.complete(suspicion.evidence)
        noticed = self.tracer.follower.noticed
        step = replace(
            step,
            state=() if handled else self._state,
            handled=handled,
            comparisons=tuple(noticed.comparisons[-8:]),  # those after the birth count too
        )
        return to_incident(step, explain(step), environment(torch.device("cpu")))

    def _silent(self) -> Incident | None:
        """A run without a bad value may have failed all the same: rates, lost updates, order of calls."""
        step = FailedStep(
            step=self.log.step,
            phase="state",
            trigger="parameter",
            run=RunRecord(
                history=tuple(self.log.whole),
                complete=True,
                replicas=self.observers.replicas.facts(living_models())
                or self.observers.optimizers.twins.facts(),
            ),
            state=self._state,
            gradients=state_scan.gradients(self.observers.optimizers),
            benign=self.tracer.benign(),
        )
        step = self.observers.complete(step)
        findings = explain(step)
        return to_incident(step, findings, environment(torch.device("cpu"))) if findings else None


def place_of(error: BaseException) -> Place:
    """The innermost line of the user's code in a traceback."""
    place, trace = Place(), without_our_frames(error.__traceback__)
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if kind_of_file(filename) == USER:
            place = Place(filename, trace.tb_lineno)
        trace = trace.tb_next
    return place


_ABOUT_VALUES = ("nan", "inf", "invalid", "out of bounds", "out of range", "between 0 and 1", "singular",
                 "positive-definite", "positive definite", "converge", "finite", "constraint",
                 "probability")  # fmt: skip


def _is_about_values(error: BaseException) -> bool:
    """Errors that bad numbers or bad labels cause, by their text; a shape mismatch is none of ours."""
    if "torch" not in sys.modules or not isinstance(
        error, (ValueError, IndexError, RuntimeError, ArithmeticError)
    ):
        return False
    text = str(error).lower()
    return any(word in text for word in _ABOUT_VALUES)
