"""RunReporter: what a run says, to a person on the terminal and to its record on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Finding, Incident, Json, Severity
from stayfinite.guarding.attempt import Attempt, StepResult
from stayfinite.recover.ladder import Counters
from stayfinite.report.html.incident_page import write_incident_page
from stayfinite.report.progress import Progress
from stayfinite.report.refusal import cause_and_fix
from stayfinite.watch.run_files import RunFiles
from stayfinite.watch.verdict import StepVerdict


class RunReporter:
    """Counts the steps, too: a step exists once it is on record."""

    def __init__(self, run_dir: Path, device: torch.device, listeners: Sequence[Any], *, quiet: bool) -> None:
        self._journal = RunFiles(run_dir, device, listeners)
        self._progress = Progress(quiet)
        self.step = 0
        self.path = self._journal.path
        self.explained: Incident | None = None  # the last failure whose birth was found

    @property
    def history(self) -> list[dict[str, Json]]:
        return self._journal.history

    def note(self, event: str, **facts: Any) -> None:
        """For the record alone."""
        self._journal.event(event, self.step, **facts)

    def say(self, text: str) -> None:
        """For the person alone; the record has it in the step's own line."""
        self._progress.event(text)

    def tell(self, event: str, text: str, **facts: Any) -> None:
        """For both."""
        self.say(text)
        self.note(event, what=text, **facts)

    def finding(self, finding: Finding) -> None:
        self.note("finding", finding=finding.to_json())
        if finding.severity is not Severity.INFO:
            self.say(f"{finding.severity.value} {finding.code}: {finding.message}. {finding.fix}.")

    def of_step(
        self,
        attempt: Attempt,
        verdict: StepVerdict,
        counters: Counters,
        action: str,
        *,
        applied: bool,
        what: str | None = None,
    ) -> StepResult:
        """Record a step and make its result."""
        line = self._journal.step(self.step, verdict, attempt.rates, attempt.window.started, action, what)
        self._progress.step(line, counters.to_dict())
        result = StepResult(
            self.step, verdict.own_loss, applied, verdict.grad_norm, action, verdict.components
        )
        self.step += 1
        return result

    def of_incident(self, incident: Incident, *, goes_on: bool) -> Path | None:
        """File a failure; show it the first time, and give the folder it is in then."""
        if incident.birth is not None or self.explained is None:
            self.explained = incident
        filed = self._journal.incident(incident, goes_on=goes_on)
        if filed.times == 1:
            self._progress.show(incident)
            folder = self._journal.folder_of(filed)
            write_incident_page(folder)
            return folder
        return None

    def of_the_end(self, reason: str, why: str, counts: Counters, saved: Path | None) -> str:
        """The last words of a run that its policy ended: why, what is left of it, and what to do next."""
        hopeless = counts.applied == 0 and counts.skipped > 3
        so_far = (
            " No update could be applied at all: skipping cannot bring this run back." if hopeless else ""
        )
        where = f"A clean checkpoint is {saved}." if saved else "No clean checkpoint could be written."
        message = (
            f"{reason} at step {self.step - 1}: {why}.{cause_and_fix(self.explained)}{so_far} "
            f"Applied {counts.applied}, skipped {counts.skipped}, rolled back {counts.rolled_back}. "
            f"{where} The record is {self.path}."
        )
        self._progress.close()
        self.tell("stop", message)
        return message

    def close(self) -> None:
        self._progress.close()
        self._journal.close()
