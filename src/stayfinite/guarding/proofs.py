"""StepProofs: which refused steps are worth a proof, and what must be kept to make one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stayfinite.findings import Incident
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.past_steps import PastStep, PastSteps, Stamp
from stayfinite.guarding.run import GuardedRun
from stayfinite.sandbox.fork import obstacle

WHEN = ("off", "failure", "stop")


@dataclass(frozen=True, slots=True)
class ProofSettings:
    """When remedies are tried, and for how long."""

    when: str = "off"
    seconds: float = 60.0


def check_prove(prove: str, seconds: float) -> ProofSettings:
    """Raise ValueError with one sentence that names the argument."""
    if prove not in WHEN:
        raise ValueError(f"Guard(prove={prove!r}): choose 'failure', 'stop' or 'off'")
    if not seconds > 0:
        raise ValueError(f"Guard(prove_limit={seconds}): a positive number of seconds is needed")
    return ProofSettings("off" if os.environ.get("STAYFINITE_PROVE") == "off" else prove, seconds)


class StepProofs:
    """Proves each place of failure once in a run."""

    def __init__(self, run: GuardedRun, settings: ProofSettings) -> None:
        self._run, self._settings = run, settings
        self._past = PastSteps()
        self._known: set[tuple[str | None, int | None]] = set()
        self._waiting: tuple[FailedStep, Attempt] | None = None
        self._can_fork: bool | None = None

    @property
    def on(self) -> bool:
        return self._settings.when != "off"

    def healthy(self, attempt: Attempt) -> None:
        """Keep the functions and batches of a step that went well."""
        if self._settings.when == "off" or attempt.window.framework_steps:
            return
        rng = self._run.recovery.transaction.rng
        if attempt.window.calls:
            self._past.add(self._stamp(), attempt, rng)
            return
        if self._can_fork is None:  # where it cannot, nothing of a loop is held on to
            self._can_fork = obstacle() is None
        if self._can_fork:
            self._past.add(self._stamp(), attempt, rng)

    def _stamp(self) -> Stamp:
        recovery = self._run.recovery
        return recovery.last_good.taken, recovery.ladder.counters.rollbacks

    def look_into(self, incident: Incident, failed: FailedStep, attempt: Attempt) -> None:
        """Try remedies on the step, if it is time for that."""
        if self._settings.when == "off" or self._run.recovery.ladder is None:
            return
        if failed.birth is not None:
            self._waiting = (failed, attempt)
        if self._waiting is None or (self._settings.when == "stop" and incident.action != "stop"):
            return
        body, (failed, attempt), self._waiting = attempt.body, self._waiting, None
        attempt.body = body
        birth = failed.birth.birth if failed.birth is not None else None
        place = (birth.file, birth.line) if birth is not None else (None, None)
        if place in self._known:
            return
        self._known.add(place)
        reporter = self._run.reporter
        from stayfinite.guarding.proof import StepProof  # needed by a failure only

        proof = StepProof(
            self._run.recovery,
            attempt,
            failed,
            self._past.newest,
            self._settings.seconds,
            lambda text: reporter.note("proof", text=text),
            self._since_the_copy(attempt),
            self._past.latest(),
        )
        try:
            proof.prove(incident)
        except Exception as error:  # noqa: BLE001 - a proof that fails must not end the training it is for
            incident.proof_remark = f"trying remedies failed: {type(error).__name__}: {error}"

    def _since_the_copy(self, attempt: Attempt) -> list[PastStep] | None:
        """None on several ranks: one that made them again alone would train on its own gradients. None for a loop with
        a scaler of its own, which goes its own way from a copy."""
        recovery = self._run.recovery
        if self._run.ranks.together or not recovery.last_good.available:
            return None
        if not attempt.window.calls and recovery.scaling.on:
            return None
        return self._past.since(self._stamp())
