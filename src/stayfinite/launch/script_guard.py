"""ScriptGuard: the guard of a script that does not call it. What it refuses becomes part of the run's one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.guard import Guard, StepResult
from stayfinite.guarding.attempt import Attempt
from stayfinite.guarding.explainer import Explainer
from stayfinite.guarding.run import GuardedRun
from stayfinite.observers.run_observers import RunObservers
from stayfinite.recover.plan import Plan
from stayfinite.recover.state import Models


class ScriptExplainer(Explainer):
    """Tells the session of a refused step instead of filing it: the report comes when the script is over."""

    tell: Callable[[FailedStep, FailedStep | None, StepResult, str], None]
    tell_mended: Callable[[], None]
    tell_bad_state: Callable[[], None]
    tell_drift: Callable[[FailedStep], None]
    may_repeat_in_place = False
    """The script would see it (counters, prints): a second run of it in a sandbox locates the failure instead."""

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
        self.tell(refused, evidence, result, not_located)

    def mended(self) -> None:
        super().mended()
        self.tell_mended()

    def bad_state(self, action: str) -> None:
        """Buffers alone are noticed by no step: repaired or not, a second run shows where it came from. Bad weights and
        moments show in their own step."""
        super().bad_state(action)
        if all(kind == "buffer" for kind, _, _ in self._run.health.bad_tensors()):
            self.tell_bad_state()

    def drifted(self, seen: FailedStep) -> None:
        self.say_drift(seen)
        self.tell_drift(seen)

    def conclude(self) -> None:
        """The session judges the whole run."""


class ScriptGuard(Guard):
    """Has the observers of the whole script, and may be told to refuse nothing."""

    explainer: ScriptExplainer
    _explainer_class = ScriptExplainer

    def __init__(
        self,
        observers: RunObservers,
        model: Models,
        optimizers: list[Optimizer],
        *,
        refuses: bool,
        **more: Any,
    ) -> None:
        self._observers, self._refuses = observers, refuses
        super().__init__(model, optimizers, **more)

    def _guarded_run(
        self,
        plan: Plan | None,
        probe: Callable[[], Any] | None,
        run_dir: str | Path | None,
        listeners: Sequence[Any],
        quiet: bool,
    ) -> GuardedRun:
        return GuardedRun(
            self.state,
            self.policy,
            plan,
            probe,
            run_dir,
            listeners,
            says="nothing" if quiet else "decisions",
            observers=self._observers,
            refuses=self._refuses,
        )
