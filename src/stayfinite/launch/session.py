"""Session: one run of a script under watch, from the first op to the written incidents."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from stayfinite.findings import Incident, Severity
from stayfinite.findings.incident import TRIGGERS
from stayfinite.findings.ranking import explain
from stayfinite.findings.rule import examine
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.run_record import Place, RunRecord, StateTensor, StepRecord
from stayfinite.launch import state_scan
from stayfinite.launch.failure_detector import FailureDetector
from stayfinite.launch.file_changes import FileChanges
from stayfinite.launch.options import Options
from stayfinite.launch.rank_place import RankPlace
from stayfinite.launch.rank_report import RankReport
from stayfinite.launch.run_folder import RunFolder
from stayfinite.launch.script import ScriptEnd, without_our_frames
from stayfinite.launch.script_training import ScriptTraining
from stayfinite.launch.signs import sign_of_trouble
from stayfinite.launch.suspicions import Suspicion
from stayfinite.launch.training_thread import TrainingThread
from stayfinite.observers.gradients import gradient_facts
from stayfinite.observers.run_observers import RunObservers
from stayfinite.recover import Policy
from stayfinite.recover.ranks import RankLost
from stayfinite.replay import Tracer
from stayfinite.replay.incident import to_incident
from stayfinite.replay.living import looked_once
from stayfinite.replay.sites import USER, kind_of_file
from stayfinite.watch.environment import environment


class Session:
    """Watches a run. `start`, then the script, then `finish`."""

    def __init__(
        self, options: Options, files: FileChanges | None = None, place: RankPlace | None = None
    ) -> None:
        self.options, self._files, self._place = options, files, place or RankPlace()
        self.tracer = Tracer()
        thread = TrainingThread()
        self.observers = RunObservers(thread, self.tracer)
        self.history = self.observers.history
        self.detector = FailureDetector(self.observers, self.tracer)
        self.folder = RunFolder(options.run_dir, self._place.rank)
        self.training = ScriptTraining(
            self.observers, self.detector, self._policy(), options, self.folder, thread, self._place.ranks
        )
        self._has_spawned = False
        self.sign: str | None = None  # of trouble in a script that never trained
        self._state: tuple[StateTensor, ...] = ()  # what is not finite when the script is over
        self._weights_seen = False  # the script still held what it trained

    def _policy(self) -> Policy | None:
        """How bad steps are refused; None if they are not: `--policy watch`, and a second run, which is traced."""
        options = self.options
        if options.policy == "watch" or options.traced:
            return None
        policy = Policy.named("default" if options.policy == "recover" else options.policy or "skip")
        if options.policy != "recover":
            # Learning rate and order of the data are the script's own, also where bad weights are put back.
            policy = replace(policy, max_rollbacks=0, max_lowerings=0)
        if options.policy is None:
            # a script that asked for nothing keeps its healthy steps
            policy = replace(policy, spikes="ignore")
        return policy

    def start(self) -> None:
        self.observers.install()
        self.detector.install()
        self.training.install()
        if self._files is not None:
            self.observers.hear("file_save", self._saving)
        self.observers.hear("spawn", self._spawned)
        self.history.listeners.append(self._step_is_over)
        if self.options.traced and not self.options.trace_from_step:
            self.tracer.start()

    def _saving(self, original: Any, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        """It writes with compiled code, of which python does not tell."""
        if self._files is not None:
            self._files.about_to_write(f)
        return original(obj, f, *args, **kwargs)

    def _spawned(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """torch.multiprocessing.spawn: nobody listens in those processes."""
        self._has_spawned = True
        return original(*args, **kwargs)

    def _step_is_over(self, record: StepRecord) -> None:
        """In a second run: trace shortly before the failing step, perhaps no longer than it, and end after it."""
        options, step = self.options, self.history.step
        if options.trace_until_step is not None and step > options.trace_until_step:
            self.tracer.stop()
        elif options.trace_from_step is not None and step >= options.trace_from_step:
            self.tracer.start()
        if options.stop_after_step is not None and step > options.stop_after_step:
            os._exit(0)  # through the replaced _exit: what was found is written first

    def finish(self, end: ScriptEnd) -> list[Incident]:
        """Judge what was seen and say what failed."""
        traced = self.tracer.active
        self.detector.finish()
        if end.error is not None and not end.interrupted:
            self._note_uncaught(end.error)
        if traced:
            self.detector.note_results()
        self.tracer.stop()
        self.training.remove()
        self.observers.remove()
        if not self.options.traced and self.observers.heard_nothing:
            return self._found()
        gc.collect()  # a model that the script let go of is no longer part of its state
        with looked_once():
            self._note_poisoned_state()
            return self._found()

    def _found(self) -> list[Incident]:
        failed = self.failures()
        if not self.options.traced and not failed and not self._has_trained:
            self.sign = sign_of_trouble(self.observers)
        stop = self.options.stop_after_step
        cut_short = stop is not None and self.history.step < stop
        found = [self._incident(suspicion) for suspicion in failed]
        if not found and not cut_short:  # a second run that ended early says nothing of the whole
            found = [self._silent()]
        found += [self._incident(suspicion, handled=True) for suspicion in self.detector.suspicions.handled()]
        for drift in self.training.drifts:
            findings = examine(drift, only=("DST001",))
            found.append(to_incident(drift, findings, environment(torch.device("cpu"))))
        return [incident for incident in found if incident is not None][: self.options.max_incidents]

    @property
    def bad_state(self) -> set[tuple[str, str]]:
        """What is not finite at the end: its owner (parameter, buffer, optimizer state, average), and its name."""
        return {(tensor.owner, tensor.name) for tensor in self._state}

    @property
    def _has_trained(self) -> bool:
        return any(seen.steps for seen in self.observers.optimizers.known.values())

    @property
    def ranks(self) -> int:
        """How many train together, or were started together."""
        return max(self._place.ranks, self.training.world_size)

    def close(self, incidents: list[Incident]) -> None:
        """Say in the incidents what was done about them, and keep the folder of the run if it is worth keeping."""
        training = self.training
        for incident in incidents:
            incident.world_size = training.world_size
            if incident.step in training.actions:
                incident.action = training.actions[incident.step]
                incident.rank = training.bad_ranks[incident.step] if training.world_size > 1 else 0
            elif training.world_size > 1:
                drifted = [drift.rank for drift in training.drifts if drift.step == incident.step]
                incident.rank = (drifted or [self._place.rank])[0]
        self.folder.close(keep=training.refused > 0 or bool(training.drifts))

    def rank_report(self, incidents: list[Incident], remarks: list[str]) -> RankReport:
        """For whoever started several ranks."""
        training = self.training
        world = training.world_size
        return RankReport(self._place.rank, world, incidents, remarks, training.refused, self._has_trained)

    def known_here_alone(self, incidents: list[Incident], end: ScriptEnd) -> list[Incident]:
        """What rank 0 does not know: how this rank ended, and what ranks that decide alone have met."""
        if end.error is not None:
            return incidents
        return [one for one in incidents if one.step in self.training.actions and not self.training.together]

    @property
    def most_refused(self) -> bool:
        """Fewer updates were applied than an exit code of 0 allows."""
        counts = self.training.counts
        asked = counts.applied + counts.skipped
        return asked > 0 and counts.applied < self.options.fail_under * asked

    def failures(self) -> list[Suspicion]:
        return self.detector.suspicions.failures(trained=self._has_trained)

    def doubt(self, incidents: list[Incident]) -> str | None:
        """Why a script without a failure is worth a second look: what it left behind, or a finding without a line."""
        if self.sign is not None:
            return f"the script is over, and {self.sign}"
        for finding in (incident.findings[0] for incident in incidents if incident.findings):
            if finding.severity is Severity.ERROR and finding.line is None:
                return f"{finding.code} {finding.name} was found, but not the line"
        return None

    @property
    def needs_second_run(self) -> bool:
        """A failure was seen while nothing was traced, or came into the step that was from somewhere else."""
        return bool(self._unexplained())

    def _unexplained(self) -> list[Suspicion]:
        return [s for s in self.failures() if s.evidence is None or s.comes_from_outside]

    @property
    def failing_step(self) -> int:
        """The last step at which an untraced failure was first seen."""
        return max((s.step for s in self._unexplained()), default=self.history.step)

    @property
    def first_failing_step(self) -> int:
        """Which failure is spoken of: a number that the script reads after its last step is none of a step."""
        return min((s.step for s in self.failures()), default=self.history.step)

    @property
    def seconds(self) -> float:
        """Since the script began."""
        return time.monotonic() - self.history.started

    @property
    def seconds_to_failure(self) -> float:
        return max((s.seconds for s in self._unexplained()), default=0.0)

    def elapsed(self, step: int) -> float:
        """How long after the start a failing step was seen."""
        return max((s.seconds for s in self.detector.suspicions.all if s.step == step), default=0.0)

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
                    RunRecord(history=tuple(self.history.recent)),
                    reproduced=reproduced,
                    state=self._state,
                )
                step = self.observers.complete(step)
                incident = to_incident(step, explain(step), environment(torch.device("cpu")))
                incident.not_located = self.training.not_located or reason
                found.append(incident)
        return found

    def remarks(self) -> Iterator[str]:
        """What the reader of a report should know besides the incidents."""
        if self.tracer.follower.trouble:
            yield "The tracer met a problem of its own: " + self.tracer.follower.trouble[-1].strip()
        if self._has_spawned:
            yield (
                "The processes that the script started with torch.multiprocessing.spawn were not guarded. Start ranks "
                "with `stayfinite run --nproc-per-node N`, or make a Guard in them."
            )
        finite = not any(tensor.owner == "parameter" for tensor in self._state)
        yield from self.training.remarks(weights_are_finite=self._weights_seen and finite)

    def _note_uncaught(self, error: BaseException) -> None:
        if isinstance(error, RankLost):
            return  # the rank that is gone has its own story
        if self.observers.files.raised(error):
            return  # a damaged file is a failure by itself, and no value is to blame
        place = place_of(error)
        failure = Failure(type(error).__name__, str(error), place)
        for suspicion in self.detector.suspicions.all:
            if suspicion.caught and suspicion.evidence is not None:
                suspicion.caught, suspicion.progress = False, False
                suspicion.evidence = replace(suspicion.evidence, failure=failure)
                return
        if not self.tracer.active:
            if _is_about_values(error):
                self.detector.suspicions.add(Suspicion("exception", self.history.step, None))
            return
        evidence = self.tracer.failure_of(failure)
        if evidence is not None and evidence.birth is not None and evidence.birth.transition != "deliberate":
            run = RunRecord(history=self.history.so_far())
            evidence = replace(evidence, step=self.history.step, run=run)
            self.detector.suspicions.add(Suspicion("exception", self.history.step, evidence))
            return
        largest = state_scan.largest_weight(self.tracer) if isinstance(error, OverflowError) else None
        evidence = FailedStep(
            self.history.step, "forward", "exception", failure=failure, largest_weight=largest
        )
        if explain(evidence):  # no bad value, but a rule knows the error
            self.detector.suspicions.add(Suspicion("exception", self.history.step, evidence))

    def _note_poisoned_state(self) -> None:
        """Weights that are bad at the end, however they became so, are a failure."""
        self._state = state_scan.scan(self.observers.optimizers, self.tracer)
        self._weights_seen = any(
            seen.optimizer() is not None for seen in self.observers.optimizers.known.values()
        )
        trained = [t for t in self._state if t.owner in ("parameter", "optimizer state") and t.nan]
        kept = [t for t in self._state if t.owner == "average" or "running_" in t.name]
        if kept and self.detector.suspicions.outlasts():
            return  # the script dropped a bad step, and its traces are still there
        if trained and not self.detector.suspicions.all:
            self.detector.suspicions.add(Suspicion("parameter", self.history.step, None, touched_state=True))

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
        """A run without a bad value may have failed all the same: learning rates, lost updates, order of calls."""
        if self.observers.heard_nothing and not self._state and not self.tracer.follower.bad_seen:
            return None
        step = FailedStep(
            step=self.history.step,
            phase="state",
            trigger="parameter",
            run=RunRecord(history=tuple(self.history.whole), complete=True),
            state=self._state,
            gradients=gradient_facts(state_scan.trained_parameters(self.observers.optimizers)),
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
                 "probability", "range error", "too large", "division by zero")  # fmt: skip


def _is_about_values(error: BaseException) -> bool:
    """Errors that bad numbers or bad labels cause, by their text; a shape mismatch is none of ours."""
    if "torch" not in sys.modules or not isinstance(
        error, (ValueError, IndexError, RuntimeError, ArithmeticError)
    ):
        return False
    text = str(error).lower()
    return any(word in text for word in _ABOUT_VALUES)
