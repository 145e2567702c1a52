"""RunReporter: what a run says, to a person on the terminal and to its record on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stayfinite.findings import Finding, Incident, Json, Severity
from stayfinite.findings.subjects.run_record import Place, StepRecord
from stayfinite.findings.update_size import MANY_TIMES, rounded
from stayfinite.guarding.attempt import StepResult
from stayfinite.hooks import missing
from stayfinite.observers.history import RunHistory
from stayfinite.recover.ladder import Counters
from stayfinite.report.progress import Progress, Says
from stayfinite.report.refusal import cause_and_fix
from stayfinite.watch.run_files import RunFiles
from stayfinite.watch.verdict import StepVerdict

_STREAK_ENDS = 5
"""So many healthy steps after a refused one, the next refusal is news again."""
_NAMED = 4  # of refused steps with healthy ones between them


@dataclass(slots=True)
class _Streak:
    """Refusals that say the same, but for the numbers in it."""

    what: str
    steps: list[int]
    varies: bool = False  # the numbers in it are those of the first

    def goes_on(self, what: str, step: int) -> bool:
        return _words(what) == _words(self.what) and step - self.steps[-1] <= _STREAK_ENDS

    def add(self, what: str, step: int) -> None:
        self.steps.append(step)
        self.varies |= what != self.what

    def __str__(self) -> str:
        what = f"{self.what} (at the first of them)" if self.varies else self.what
        return f"{self._when()}: {what}; {len(self.steps)} updates not applied"

    def _when(self) -> str:
        first, last, count = self.steps[0], self.steps[-1], len(self.steps)
        if last - first < count:
            return f"steps {first} to {last}"
        if count <= _NAMED:
            return f"steps {', '.join(map(str, self.steps[:-1]))} and {last}"
        return f"{count} of the steps {first} to {last}"


def _words(text: str) -> str:
    return re.sub(r"-?\d[\d.e+-]*|\binf\b|\bnan\b", "#", text)


class RunReporter:
    """Writes the history of the run, too: a step exists once it is on record."""

    def __init__(
        self,
        run_dir: Path | None,
        device: torch.device,
        history: RunHistory,
        listeners: Sequence[Any],
        *,
        says: Says,
    ) -> None:
        self._journal = RunFiles(run_dir, device, listeners)
        self._history = history
        self._progress = Progress(says)
        self._streak: _Streak | None = None
        self._refused_last = 0  # the number of the step
        self._found: set[str] = set()  # codes of what was said
        self._missing = 0  # how many names that torch does not have were said
        self.path = self._journal.path
        self.explained: Incident | None = None  # the last failure whose birth was found

    @property
    def step(self) -> int:
        """The number of the next step."""
        return self._history.step

    @step.setter
    def step(self, number: int) -> None:
        self._history.step = number

    @property
    def lines(self) -> list[dict[str, Json]]:
        """The last steps as they are on record."""
        return self._journal.history

    def note(self, event: str, **facts: Any) -> None:
        """For the record alone."""
        self._journal.event(event, self.step, **facts)

    def _say(self, event: str, text: str) -> None:
        """For the person alone."""
        self._end_streak()
        self._progress.event(text, event)

    def tell(self, event: str, text: str, **facts: Any) -> None:
        """For both."""
        self._say(event, text)
        self.note(event, what=text, **facts)

    def refusal(self, what: str, action: str) -> None:
        """The next step is refused: said at once the first time; the same again is counted, and said when it ends.

        The record has each of them in the step's own line.
        """
        streak, self._refused_last = self._streak, self.step
        if streak is not None and streak.goes_on(what, self.step) and action == "skip":
            streak.add(what, self.step)
            return
        self._say("refusal", f"step {self.step}: {what}; the update is not applied ({action})")
        self._streak = _Streak(what, [self.step])

    def _end_streak(self) -> None:
        streak, self._streak = self._streak, None
        if streak is not None and len(streak.steps) > 1:
            self._progress.event(str(streak), "refusal")

    def finding(self, finding: Finding, kind: str = "finding") -> None:
        self._found.add(finding.code)
        self.note("finding", finding=finding.to_json())
        if finding.severity is not Severity.INFO:
            self._say(kind, f"{finding.severity.value} {finding.code}: {finding.message}. {finding.fix}.")

    def last_update(self, ratio: float | None) -> None:
        self._history.note_update(ratio)

    def at_the_end(self, findings: Sequence[Finding]) -> None:
        """What the whole of the run shows: all of it on record, and one line for the person."""
        news = [f for f in findings if f.code not in self._found]
        for finding in news:
            self.note("finding", finding=finding.to_json())
        serious = [f for f in news if f.severity is not Severity.INFO]
        if serious:
            first, more = serious[0], len(serious) - 1
            place = f" ({Path(first.file).name}:{first.line})" if first.file and first.line else ""
            rest = f" {more} more in {self.path}." if more else ""
            self._say(
                "finding", f"{first.severity.value} {first.code}: {first.message}{place}. {first.fix}.{rest}"
            )

    def of_step(
        self,
        verdict: StepVerdict,
        rates: list[float],
        started: float,
        counters: Counters,
        action: str,
        *,
        applied: bool,
        what: str | None = None,
        who: Sequence[int] = (),
        rate: float | None = None,
        stepped: Place = Place(),  # noqa: B008 - frozen
    ) -> StepResult:
        """Record a step and make its result."""
        self._say_what_is_missing()
        step = self.step
        line = self._journal.step(step, verdict, rates, started, action, what)
        self._progress.step(line, counters.to_dict())
        record = StepRecord(
            step,
            loss=verdict.own_loss,
            grad_norm=verdict.grad_norm,
            lr=rates[0] if rates else None,
            scale=verdict.scale,
            input_absmax=verdict.input_absmax,
            applied=applied,
            who=tuple(sorted(who)),
            rate=rate,
            stepped=stepped,
        )
        self._history.add(record, last_update=verdict.update_ratio)
        if applied and self._streak is not None and step - self._streak.steps[-1] >= _STREAK_ENDS:
            self._end_streak()
        return StepResult(step, verdict.own_loss, applied, verdict.grad_norm, action, verdict.components)

    def _say_what_is_missing(self) -> None:
        """What this version of torch does not let us hear: said once, and the run goes on without it."""
        sentences = missing()
        for sentence in sentences[self._missing :]:
            self.tell("warning", sentence)
        self._missing = len(sentences)

    def of_incident(self, incident: Incident, *, goes_on: bool) -> Path | None:
        """File a failure; show it the first time, and give the folder it is in then."""
        if incident.birth is not None or self.explained is None:
            self.explained = incident
        self._found.update(finding.code for finding in incident.findings)
        filed = self._journal.incident(incident, goes_on=goes_on)
        if filed.times == 1:
            from stayfinite.report.html.incident_page import write_incident_page  # needed by a failure only

            self._progress.show(incident)
            folder = self._journal.folder_of(filed)
            if folder is not None:
                write_incident_page(folder)
            return folder
        return None

    def of_the_end(
        self, reason: str, why: str, counts: Counters, saved: Path | None, *, stuck: bool, as_it_is: bool
    ) -> str:
        """The last words of a run that its policy ended: why, what is left of it, and what to do next.

        `stuck`: what failed has never had an update. `as_it_is`: what was saved is the state that the steps have made,
        and no earlier one.
        """
        far = max(self._history.whole, key=lambda r: (r.applied and r.update_ratio) or 0.0, default=None)
        so_far, what = "", "A clean checkpoint"
        if counts.applied == 0 and counts.skipped > 3:
            so_far = " No update could be applied at all: skipping cannot bring this run back."
            what = "The state that it began with"
        elif stuck:
            so_far = " No update of that optimizer could be applied: skipping cannot bring this run back."
            what = "The state, in which the weights of that optimizer are as they began,"
        elif (
            as_it_is
            and counts.rolled_back == 0
            and far is not None
            and (far.update_ratio or 0.0) >= MANY_TIMES
        ):
            what = (
                f"The state, finite but moved by about {rounded(far.update_ratio or 0.0)} times the size of the "
                f"weights at step {far.step},"
            )
        where = f"{what} is {saved}." if saved else "No clean checkpoint could be written."
        message = (
            f"{reason} at step {self._refused_last}: {why}.{cause_and_fix(self.explained)}{so_far} "
            f"Applied {counts.applied}, skipped {counts.skipped}, rolled back {counts.rolled_back}. "
            f"{where} The record is {self.path}."
        )
        self._progress.close()
        self.tell("stop", message)
        return message

    def close(self) -> None:
        self._end_streak()
        self._progress.close()
        self._journal.close(self.step)
