"""Explainer: a refused step becomes an incident that says what went wrong, where and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch.optim import Optimizer

from stayfinite.findings import Incident, Json, as_float
from stayfinite.findings.incident import ACTIONS
from stayfinite.findings.ranking import explain
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import RunRecord, StepRecord
from stayfinite.guarding import facts
from stayfinite.guarding.attempt import Attempt, Refusal, StepResult
from stayfinite.guarding.locate import LateBinding, Replay
from stayfinite.guarding.run import GuardedRun
from stayfinite.replay.incident import to_incident
from stayfinite.watch.environment import environment
from stayfinite.watch.optimizer_facts import optimizer_facts


class Explainer:
    """Decides which refused steps are worth following op by op, and tells what is known of each."""

    def __init__(self, run: GuardedRun, *, locates: bool) -> None:
        self._run = run
        self.locates = locates

    def wants_replay(self, refusal: Refusal) -> bool:
        """The first of a streak is followed op by op; the rest would only say the same again."""
        of_the_step = refusal.refused.bad_update or refusal.refused.trigger in ("loss", "gradient")
        return self.locates and of_the_step and refusal.first

    may_repeat_in_place = True
    """May a loop's body run again in this very process where it cannot be done in a sandboxed child?"""

    def may_follow(self, refusal: Refusal) -> bool:
        """The steps after an unlocated one are followed op by op, unless locating is off."""
        return self.locates and refusal.refused.trigger in ("loss", "gradient")

    def replay(self, attempt: Attempt) -> FailedStep | None:
        """Call the step's functions again, from the same state and random numbers, under the tracer."""
        try:
            return Replay(self._run.recovery, attempt).of_functions()
        except LateBinding as obstacle:
            self._run.reporter.tell("warning", f"the refused step was not replayed: {obstacle}")
            return None
        except Exception as error:  # noqa: BLE001 - a replay that fails must not end the training it explains
            self._run.reporter.tell(
                "warning", f"the replay of a refused step failed: {type(error).__name__}: {error}"
            )
            return None

    def file(
        self,
        refused: FailedStep,
        evidence: FailedStep | None,
        attempt: Attempt,
        result: StepResult,
        *,
        goes_on: bool,
    ) -> None:
        """Explain what happened, keep it with the run, and show it the first time."""
        reporter = self._run.reporter
        action = result.action if result.action in ACTIONS else "none"
        machine = environment(self._run.device)
        result.incident = _explain(
            refused,
            evidence,
            attempt.optimizers,
            action,
            reporter.history,
            machine,
            self._run.foresight.largest_outputs(),
        )
        reporter.of_incident(result.incident, goes_on=goes_on)

    def bad_state(self, action: str) -> None:
        """State was found bad between two steps: an incident of its own."""
        run = self._run
        refused, history = facts.of_state(run.reporter.step, run.health), run.reporter.history
        incident = _explain(refused, None, run.state.optimizers, action, history, environment(run.device))
        run.reporter.of_incident(incident, goes_on=False)

    def mended(self) -> None:
        """Say that a body without an update had left bad buffers, which are as they were before it."""
        reporter = self._run.reporter
        reporter.tell(
            "mended",
            f"before step {reporter.step}: a batch that was not trained on left NaN or Inf in buffers; they are as "
            "before",
        )


def _explain(
    refused: FailedStep,
    evidence: FailedStep | None,
    optimizers: Sequence[Optimizer],
    action: str,
    history: list[dict[str, Json]],
    environment: dict[str, Json],
    by_time: tuple[tuple[int, float], ...] = (),
) -> Incident:
    """The incident: what the guard saw, and where a replay shows more, that too."""
    run = RunRecord(
        history=tuple(_records(history)), optimizers=tuple(optimizer_facts(each) for each in optimizers)
    )
    step = replace(refused, run=run, reproduced=None if evidence is None else True)
    if evidence is not None:
        step = replace(
            step,
            phase=evidence.phase,
            births=evidence.births,
            sink=evidence.sink,
            path=evidence.path,
            benign=evidence.benign,
            comparisons=evidence.comparisons,
            growth=replace(evidence.growth, by_time=by_time) if evidence.growth is not None else None,
        )
    incident = to_incident(step, explain(step), environment, action)
    incident.history = history
    return incident


def _records(history: list[dict[str, Json]]) -> Iterator[StepRecord]:
    """The recorded steps. How far an update went is known, and recorded, one step later."""
    steps = [line for line in history if isinstance(line.get("step"), int)]
    nothing: dict[str, Json] = {}
    for line, following in zip(steps, [*steps[1:], nothing], strict=False):
        step, rates = line.get("step"), line.get("lr")
        if isinstance(step, int):
            yield StepRecord(
                step,
                loss=as_float(line.get("loss")),
                grad_norm=as_float(line.get("grad_norm")),
                lr=as_float(rates[0]) if isinstance(rates, list) and rates else None,
                scale=as_float(line.get("scale")),
                update_ratio=as_float(following.get("update_ratio")),
                applied=line.get("action") == "none",
            )
