"""Counterfactual: each candidate is applied to the replay and judged, beside a control arm that should not help."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from stayfinite.findings.trial import ProofReport
from stayfinite.prove.attempted import Attempted, patch_of, quality
from stayfinite.prove.candidates import Candidates
from stayfinite.prove.comparison import compare
from stayfinite.prove.stage import (
    Stage,
    case_at,
    fails_elsewhere,
    nothing_failed,
    observable,
    stage_of,
)
from stayfinite.prove.standalone import names_of, place_of, standalone
from stayfinite.prove.trial import Plan, Run, TrialResult
from stayfinite.prove.trials import Trials
from stayfinite.prove.two_by_two import TwoByTwo
from stayfinite.remedies.remedy import Case, Prescription
from stayfinite.remedies.source import SourceSite

_NULL_RUNS = 3
_LEAST_RUNS = 4  # a proof of fewer proves nothing
# who is to blame is asked first if that takes so much of the time, else last
_BLAME_RUNS, _SHARE_OF_BLAME = 3, 0.25
# ops of a birth that is older than its step
_FROM_BEFORE = frozenset({"parameter", "buffer", "state", "outside"})


@dataclass(frozen=True, slots=True)
class ReportedBirth:
    """What is known of the birth before anything is tried."""

    file: str | None
    line: int | None
    step: int | None = None
    op: str = ""


class Counterfactual:
    """Tries remedies within a budget of seconds. `run` leaves the world as it was."""

    def __init__(
        self, run: Run, seconds: float, say: Callable[[str], None] = lambda text: None, *, past: bool = True
    ) -> None:
        """`past`: a trial begins before the failing step, so that a rate or a clip has steps to act on."""
        self._past, self._say = past, say
        self._trial = Trials(run, seconds)
        self._candidates = Candidates(self._trial, say, past=past)
        self._case: Case | None = None

    def report(self, reported: ReportedBirth | None = None) -> ProofReport:
        """Everything that was tried, best first, on the birth that was reported."""
        first, stage, late = self._untouched(reported)
        if stage is None:
            return ProofReport(remark=nothing_failed(first))
        if self._past and self._trial.left < (_LEAST_RUNS - 1) * self._trial.typical:
            return ProofReport(remark=self._too_long())
        null, until = [first], stage.step.step + 1  # where it fails is known now
        if self._past and not late:
            again = self._followed_late(stage)
            null += [again] if again is not None else []
            late = again is not None
        if self._past:
            self._trial.follow_around(stage.step.step, from_the_begin=not late)
        null += [
            self._trial(Plan(until=until)) for _ in range(_NULL_RUNS - len(null)) if self._trial.left > 0
        ]
        place = stage.judged.birth.birth
        ran = [one for one in null if one.ended == "finished"]  # one that had no time says nothing
        failed = sum(stage_of(one, (place.file, place.line)) is not None for one in ran)
        report = ProofReport(file=place.file, line=place.line)
        if failed < len(ran):
            report.blame = "flaky"
            report.remark = (
                f"untouched, the replay failed in {failed} of {len(ran)} runs: nothing can be proved on it"
            )
            return report
        dear = _BLAME_RUNS * self._trial.typical > _SHARE_OF_BLAME * self._trial.left
        if not dear:
            self._ask_who(stage, report)
        case = self._case = case_at(stage)
        self._candidates.try_all(stage, case)
        if dear:
            self._ask_who(stage, report)
        compare(self._done, case)
        self._sum_up(stage, report)
        return report

    def _too_long(self) -> str:
        """Asked of a run of the proof itself: the user's own may have been slower, beside other work or by locating."""
        one, all_of_it = self._trial.typical, self._trial.seconds
        return (
            f"no remedy was tried: one run to the failing step takes {one:.0f} s, and trying may take "
            f"{all_of_it:.0f} s (--prove-limit)"
        )

    def _untouched(self, reported: ReportedBirth | None) -> tuple[TrialResult, Stage | None, bool]:
        """A run as it is, what failed in it, and whether it was followed around the failing step only: that shows
        enough if it shows the birth that was reported."""
        place = (reported.file, reported.line) if reported is not None else None
        if (
            self._past
            and reported is not None
            and reported.step is not None
            and reported.op not in _FROM_BEFORE
        ):
            plan = self._trial.seen_around(reported.step)
            result = self._trial(plan) if plan is not None else None
            stage = stage_of(result, place) if result is not None else None
            if result is not None and stage is not None and stage.step.step == reported.step:
                birth = stage.judged.birth.birth
                if (birth.file, birth.line, birth.op) == (reported.file, reported.line, reported.op):
                    return result, stage, True
        result = self._trial(Plan())
        return result, stage_of(result, place), False

    def _followed_late(self, stage: Stage) -> TrialResult | None:
        """An untouched run that is followed from shortly before the failure on. If it shows the same birth, the steps
        before need not be followed in any trial: that is most of what a late failure costs."""
        plan = self._trial.seen_around(stage.step.step)
        if plan is None or self._trial.left <= 0:
            return None
        result = self._trial(plan)
        place = stage.judged.birth.birth
        again = stage_of(result, (place.file, place.line))
        same = (
            again is not None
            and not fails_elsewhere(again, stage)
            and again.judged.how.kind is stage.judged.how.kind
        )
        return result if same else None

    def _ask_who(self, stage: Stage, report: ProofReport) -> None:
        if self._past:
            self._say("asking whether the batch or the state is to blame")
            asked = TwoByTwo(self._trial, self._trial.over)
            report.blame, report.blame_remark = asked.asked(stage.step.step)

    def _sum_up(self, stage: Stage, report: ProofReport) -> None:
        """What was tried, best first; the patch; and in a sentence what the reader should know of the proof."""
        best_first = sorted(self._done, key=quality)
        report.tried = [one.tried for one in best_first]
        proved = [one for one in best_first if one.tried.proved and not one.tried.control]
        for one in proved:  # the best that is a change of the source
            report.patch = patch_of(one)
            if report.patch is not None:
                report.patched_by = one.tried.remedy
                self._write_standalone(stage, one, report)
                break
        if self._trial.cut_short:
            report.remark = f"the budget of {self._trial.seconds:.0f} s was used up; not everything was tried"
        if report.worthless:
            working = ", ".join(one.remedy for one in report.tried if one.control and one.proved)
            report.remark = (
                f"a control that should not help worked as well ({working}): the proof is worth nothing"
            )
        elif not proved and not report.remark:
            report.remark = f"nothing proved: {self._why_nothing()}"

    def _why_nothing(self) -> str:
        if all(one.tried.control and not one.tried.popular for one in self._done):
            return "no remedy is known for this"
        unfinished = sum(not one.finished for one in self._done)
        if unfinished:
            return f"{unfinished} of {len(self._done)} trials did not come to their end, and no other makes it finite"
        finite = [one.tried for one in self._done if one.tried.finite and not one.tried.control]
        if finite:
            return f"with {finite[0].remedy} it is {finite[0].reason}"
        for one in (done.tried for done in self._done if not done.tried.control):
            if one.reason.startswith("now not finite") and "later" in one.reason:
                return f"with {one.remedy} this step is finite, but {one.reason.removeprefix('now ')}"
        return "no remedy that was tried makes it finite"

    @property
    def _done(self) -> list[Attempted]:
        return self._candidates.done

    @property
    def attempted(self) -> dict[str, Attempted]:
        """Every candidate by its name, with what it changes."""
        return {one.tried.remedy: one for one in self._done}

    @property
    def case(self) -> Case | None:
        """The birth that candidates were tried on; None if none was found."""
        return self._case

    def _write_standalone(self, stage: Stage, one: Attempted, report: ProofReport) -> None:
        """The failing expression with its values, where plain values are all that it needs."""
        case = case_at(stage)
        if (
            case.site is None
            or len(one.texts) != 1
            or not one.spans
            or len(one.remedies) != 1
            or self._trial.over()
        ):
            return
        after = SourceSite(case.site.file, next(iter(one.texts.values())), case.site.line)
        number = place_of(case.site, one.spans[0][0])
        if number is None:
            return
        names = tuple({*names_of(case.site, number), *names_of(after, number)})
        values, _, failing = self._candidates.before(
            stage, case, Prescription(one.remedies[0], case.site.file, one.edits)
        )
        watched = observable(case, Prescription(one.remedies[0], None, one.edits))
        result = self._trial(Plan({os.path.realpath(case.site.file): watched}, (), failing, names=names))
        written = (
            standalone(case.site, after, number, result.inputs, f"{case.op} on line {case.site.line}")
            if values
            else None
        )
        if written is not None:
            report.standalone, report.test = written.script, written.test
