"""Explainer: a refused step becomes an incident that says what went wrong, where and why."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from stayfinite.findings import Incident
from stayfinite.findings.incident import ACTIONS
from stayfinite.findings.ranking import explain
from stayfinite.findings.rule import examine
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import RunRecord
from stayfinite.guarding import facts
from stayfinite.guarding.attempt import Attempt, Refusal, StepResult
from stayfinite.guarding.locate import LateBinding, Replay
from stayfinite.guarding.lone_rank import is_collective, own_gradients
from stayfinite.guarding.proofs import ProofSettings, StepProofs
from stayfinite.guarding.run import GuardedRun
from stayfinite.guarding.step_capsule import write_step_capsule
from stayfinite.observers.gradients import gradient_facts
from stayfinite.recover.ranks import rank, world_size
from stayfinite.replay.incident import to_incident
from stayfinite.replay.tracer import is_followed
from stayfinite.report.refusal import cause_and_fix
from stayfinite.watch.environment import environment


class Explainer:
    """Decides which refused steps are worth following op by op, and tells what is known of each."""

    def __init__(self, run: GuardedRun, *, locates: bool, proves: ProofSettings | None = None) -> None:
        self._run = run
        self.locates = locates
        self._concluded = False
        self._lost = False  # a rank, and with it the run: no time is left to try remedies
        self._proofs = StepProofs(run, proves or ProofSettings())

    @property
    def proves(self) -> bool:
        return self._proofs.on

    def saw_healthy(self, attempt: Attempt) -> None:
        """A step went well: its batch is what a failing one is compared with."""
        self._proofs.healthy(attempt)

    def wants_replay(self, refusal: Refusal) -> bool:
        """The first of a streak is followed op by op; the rest would only say the same again, and so would a step that
        somebody follows already."""
        of_the_step = refusal.refused.bad_update or refusal.refused.trigger in ("loss", "gradient")
        return self.locates and of_the_step and refusal.first and not is_followed()

    may_repeat_in_place = True
    """May a loop's body run again in this very process where it cannot be done in a sandboxed child?"""

    def may_follow(self, refusal: Refusal) -> bool:
        """The steps after an unlocated one are followed op by op, unless locating is off."""
        return self.locates and refusal.refused.trigger in ("loss", "gradient") and not is_followed()

    def replay(self, attempt: Attempt) -> FailedStep | None:
        """Call the step's functions again, from the same state and random numbers, under the tracer."""
        try:
            with self._run.observers.paused(), own_gradients(self._run.state.models.values()):
                return Replay(self._run.recovery, attempt).of_functions()
        except LateBinding as obstacle:
            self._run.reporter.tell("warning", f"the refused step was not replayed: {obstacle}")
            return None
        except Exception as error:  # noqa: BLE001 - a replay that fails must not end the training it explains
            self._run.reporter.tell(
                "warning", f"the replay of a refused step failed: {type(error).__name__}: {error}"
            )
            return None

    def from_any_rank(self, evidence: FailedStep | None, first: int | None) -> FailedStep | None:
        """Only the rank with the bad batch sees where it went wrong; then all know, and rank 0 can say it.

        `first`: the rank whose loss was bad, where that is known. Else the first that saw a bad value come up. Not one
        that was sent it: where ranks exchange activations, all losses are bad.
        """
        ranks = self._run.ranks
        if not ranks.together:
            return evidence
        told = ranks.texts(pickle.dumps(evidence) if evidence is not None else b"")
        seen: dict[int, FailedStep] = {number: pickle.loads(text) for number, text in enumerate(told) if text}
        if not seen:
            return None

        def order(number: int) -> tuple[bool, bool, bool, int]:
            return _was_sent(seen[number]), number != first, not _was_born(seen[number]), number

        chosen = min(seen, key=order)
        sent = first in seen and _was_sent(seen[first])
        return replace(seen[chosen], rank=chosen if first is None or sent else first)

    def file(
        self,
        refused: FailedStep,
        evidence: FailedStep | None,
        attempt: Attempt,
        result: StepResult,
        *,
        goes_on: bool,
        not_located: str = "",
    ) -> None:
        """Explain what happened, keep it with the run, and show it the first time. `not_located`: why it was not."""
        reporter = self._run.reporter
        action = result.action if result.action in ACTIONS else "none"
        failed = self._completed(refused, evidence)
        result.incident = self._explain(failed, action)
        result.incident.not_located = not_located
        if not self._lost:
            with self._run.observers.paused():
                self._proofs.look_into(result.incident, failed, attempt)
        folder = reporter.of_incident(result.incident, goes_on=goes_on)
        if folder is not None and self._proofs.on:
            self._keep_capsule(folder, result.incident, attempt)

    def file_without_others(self, refusal: Refusal, evidence: FailedStep | None) -> str:
        """A rank was lost before the ranks could tell each other what they saw: file what this one did, and say it."""
        self._lost = True
        if evidence is not None and _was_sent(evidence):
            evidence = None
        bad = refusal.refused.rank
        if evidence is not None:
            evidence = replace(evidence, rank=rank() if bad is None else bad)
        who = f"rank {bad}" if bad is not None else "the ranks"
        why = f"a rank was lost before {who} could tell" if evidence is None else ""
        goes_on = not refusal.first and evidence is None
        self.file(
            refusal.refused, evidence, refusal.attempt, refusal.result, goes_on=goes_on, not_located=why
        )
        known = f" It was not located: {why}." if evidence is None else cause_and_fix(refusal.result.incident)
        return f"Step {refusal.result.step} had been refused: {refusal.what}.{known}"

    def _keep_capsule(self, folder: Path, incident: Incident, attempt: Attempt) -> None:
        try:
            remark = write_step_capsule(
                folder / "capsule", incident, attempt, self._run.state, self._run.recovery.transaction.rng
            )
        except (OSError, ValueError, RuntimeError) as error:
            remark = f"{type(error).__name__}: {error}"
        if remark is not None:
            self._run.reporter.note("capsule", text=f"not in the capsule of step {incident.step}: {remark}")

    def bad_state(self, action: str) -> None:
        """State was found bad between two steps: an incident of its own."""
        refused = facts.of_state(self._run.reporter.step, self._run.health)
        self._run.reporter.of_incident(self._explain(self._completed(refused, None), action), goes_on=False)

    def drifted(self, seen: FailedStep) -> None:
        """Replicas that were equal no longer are: an incident of its own."""
        incident = to_incident(seen, examine(seen, only=("DST001",)), environment(self._run.device))
        incident.rank, incident.world_size = seen.rank, world_size()
        self._run.reporter.of_incident(incident, goes_on=False)
        self.say_drift(seen)

    def say_drift(self, seen: FailedStep) -> None:
        self._run.reporter.tell(
            "drift",
            f"before step {seen.step}: the weights of rank {seen.rank} are no longer those of the other ranks",
        )

    def conclude(self) -> None:
        """The run is over: a run without a bad value may have failed all the same (learning rates, lost updates)."""
        run, observers = self._run, self._run.observers
        observers.remove()
        if self._concluded or not run.reporter.step:
            return
        self._concluded = True
        whole = RunRecord(history=tuple(observers.history.whole), complete=True)
        step = replace(facts.of_state(run.reporter.step, run.health), run=whole)
        step = replace(step, gradients=gradient_facts(run.state.parameter_names))
        run.reporter.at_the_end(explain(observers.complete(step)))

    def mended(self) -> None:
        """Say that a body without an update had left bad buffers, which are as they were before it."""
        reporter = self._run.reporter
        reporter.tell(
            "mended",
            f"before step {reporter.step}: a batch that was not trained on left NaN or Inf in buffers; they are as "
            "before",
        )

    def _completed(self, refused: FailedStep, evidence: FailedStep | None) -> FailedStep:
        """What the guard saw, and where a replay shows more, that too; with all that is known of the run."""
        run = self._run
        step = run.observers.complete(replace(refused, reproduced=None if evidence is None else True))
        if evidence is not None:
            step = replace(
                step,
                phase=evidence.phase,
                rank=step.rank if evidence.rank is None else evidence.rank,
                births=evidence.births,
                sink=evidence.sink,
                path=evidence.path,
                benign=evidence.benign,
                comparisons=evidence.comparisons,
                growth=replace(evidence.growth, by_time=run.foresight.largest_outputs())
                if evidence.growth is not None
                else None,
            )
        return step

    def _explain(self, step: FailedStep, action: str) -> Incident:
        run = self._run
        incident = to_incident(step, explain(step), environment(run.device), action)
        incident.history = run.reporter.lines
        incident.world_size = world_size()
        incident.rank = step.rank if incident.world_size > 1 else 0
        return incident


def _was_born(seen: FailedStep) -> bool:
    """The bad value came up in this step, and was not given to it."""
    return seen.birth is not None and seen.birth.transition != "outside"


def _was_sent(seen: FailedStep) -> bool:
    """The bad value came with what other ranks sent."""
    return seen.birth is not None and (is_collective(seen.birth.birth.op) or seen.birth.birth.op == "rank")
