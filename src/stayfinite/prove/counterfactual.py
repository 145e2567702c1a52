"""Counterfactual: each candidate is applied to the replay and judged, beside a control arm that should not help."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.prove.attempted import Attempted, patch_of, quality, reach
from stayfinite.prove.expression import distortion, looked_at
from stayfinite.prove.judgement import (
    leaves_the_update,
    moves,
    postponed,
    ruins_the_weights,
    was_rounded_to_zero,
    why_failed,
    works,
)
from stayfinite.prove.stage import (
    Stage,
    case_at,
    failing_part,
    fails_elsewhere,
    moved_losses,
    nothing_failed,
    observable,
    observed_spans,
    stage_of,
)
from stayfinite.prove.standalone import names_of, place_of, standalone
from stayfinite.prove.trial import Plan, Run, TrialResult
from stayfinite.prove.two_by_two import TwoByTwo
from stayfinite.remedies.measured_rate import MeasuredRate
from stayfinite.remedies.remedy import Case, Prescription, prescriptions
from stayfinite.remedies.source import Edit, SourceSite, edited

_NULL_RUNS, _CONTROLS, _DEPTH = 3, 2, 3
_SEED = 20240229
_POPULAR_TRIED = 3
_FURTHER_STEPS = 20
_FOLLOWED_BEFORE = 2  # steps
MOVES_TOO_MUCH = 0.01  # of their size: so far healthy values may not move


class Counterfactual:
    """Tries remedies within a budget of seconds. `run` leaves the world as it was."""

    def __init__(
        self, run: Run, seconds: float, say: Callable[[str], None] = lambda text: None, *, past: bool = True
    ) -> None:
        """`past`: a trial begins before the failing step, so that a rate or a clip has steps to act on."""
        self._past = past
        self._run, self._end, self._say = run, time.monotonic() + seconds, say
        self._seconds = seconds
        self._until: int | None = None
        self._follow_from: int | None = None
        self._looked: dict[tuple[object, ...], TrialResult] = {}
        self._done: list[Attempted] = []
        self._remark = ""
        self._case: Case | None = None
        self._longest = 0.0

    def report(self, expected: tuple[str | None, int | None] | None = None) -> ProofReport:
        """Everything that was tried, best first; `expected` is the place of the birth that was reported."""
        null = [self._trial(Plan()) for _ in range(1)]
        stage = stage_of(null[0], expected)
        if stage is None:
            return ProofReport(remark=nothing_failed(null[0]))
        place = stage.judged.birth.birth
        until = stage.step.step + 1  # where it fails is known now
        late = self._followed_late(stage, until) if self._past else None
        null += [late] if late is not None else []
        null += [self._trial(Plan(until=until)) for _ in range(_NULL_RUNS - len(null)) if self._left() > 0]
        ran = [one for one in null if one.ended == "finished"]  # one that had no time says nothing
        failed = sum(stage_of(one, (place.file, place.line)) is not None for one in ran)
        report = ProofReport(file=place.file, line=place.line)
        if failed < len(ran):
            report.blame = "flaky"
            report.remark = (
                f"untouched, the replay failed in {failed} of {len(ran)} runs: nothing can be proved on it"
            )
            return report
        if self._past:
            self._say("asking whether the batch or the state is to blame")
            report.blame, report.blame_remark = TwoByTwo(self._trial, self._over).asked(stage.step.step)
        self._until = stage.step.step + _FURTHER_STEPS
        self._try_all(stage)
        self._judge_gradients()
        self._judge_updates()
        report.tried = [one.tried for one in sorted(self._done, key=quality)]
        best = next(
            (one for one in sorted(self._done, key=quality) if one.tried.proved and not one.tried.control),
            None,
        )
        for one in sorted(self._done, key=quality):  # the best that is a change of the source
            if one.tried.proved and not one.tried.control and report.patch is None:
                report.patch = patch_of(one)
                report.patched_by = one.tried.remedy if report.patch is not None else None
                if report.patch is not None:
                    self._write_standalone(stage, one, report)
        report.remark = self._remark
        if report.worthless:
            working = ", ".join(one.remedy for one in report.tried if one.control and one.proved)
            report.remark = (
                f"a control that should not help worked as well ({working}): the proof is worth nothing"
            )
        elif best is None and not report.remark:
            report.remark = f"nothing proved: {self._why_nothing()}"
        return report

    def _followed_late(self, stage: Stage, until: int) -> TrialResult | None:
        """An untouched run that is followed from shortly before the failure on. If it shows the same birth, the steps
        before need not be followed in any trial: that is most of what a late failure costs."""
        first = stage.step.step - _FOLLOWED_BEFORE
        if first < _FOLLOWED_BEFORE or self._left() <= 0:
            return None
        result = self._trial(Plan(until=until, follow_from=first))
        place = stage.judged.birth.birth
        again = stage_of(result, (place.file, place.line))
        same = (
            again is not None
            and not fails_elsewhere(again, stage)
            and again.judged.how.kind is stage.judged.how.kind
        )
        if not same:
            return None
        self._follow_from = first
        return result

    def _why_nothing(self) -> str:
        if not self._done:
            return "no remedy is known for this"
        unfinished = sum(not one.finished for one in self._done)
        if unfinished:
            return f"{unfinished} of {len(self._done)} trials did not come to their end, and no other makes it finite"
        finite = [one.tried for one in self._done if one.tried.finite and not one.tried.control]
        if finite:
            return f"with {finite[0].remedy} it is {finite[0].reason}"
        return "no remedy that was tried makes it finite"

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
            or self._over()
        ):
            return
        after = SourceSite(case.site.file, next(iter(one.texts.values())), case.site.line)
        number = place_of(case.site, one.spans[0][0])
        if number is None:
            return
        names = tuple({*names_of(case.site, number), *names_of(after, number)})
        values, _, failing = self._before(
            stage, case, Prescription(one.remedies[0], case.site.file, one.edits)
        )
        file, watched = (
            os.path.realpath(case.site.file),
            observable(case, Prescription(one.remedies[0], None, one.edits)),
        )
        result = self._trial(Plan({file: watched}, (), failing, names=names))
        written = (
            standalone(case.site, after, number, result.inputs, f"{case.op} on line {case.site.line}")
            if values
            else None
        )
        if written is not None:
            report.standalone, report.test = written.script, written.test

    # -- trying ------------------------------------------------------------------------------------------

    def _try_all(self, stage: Stage) -> None:
        case = self._case = case_at(stage)
        fitting = [one for one in prescriptions(case) if self._can_act(one, stage)]
        order = sorted(
            fitting,
            key=lambda p: (
                not p.remedy.goes_first,
                p.remedy.leaves_steps_out,
                p.remedy.rank,
                p.remedy.name,
            ),
        )
        for one in order:
            if self._over():
                break
            self._try(stage, case, one, depth=1)
        for one in self._controls(case, fitting, stage):
            if self._over():
                break
            self._try(stage, case, one, depth=_DEPTH, control=True)
        self._try_popular(stage, case)

    def _can_act(self, one: Prescription, stage: Stage) -> bool:
        """An edit always; what changes updates where there are any, and before the failure if it changes training."""
        if one.edits:
            return True
        if one.remedy.over_steps and not self._past:
            return False
        if stage.step.phase == "optimizer" or not one.remedy.of_updates:
            return True
        return bool(stage.result.applied) and (self._past or not one.remedy.trains_otherwise)

    def _try_popular(self, stage: Stage, case: Case) -> None:
        """What is recommended for everything: shown to fail where it fails. Needs updates to act on."""
        if not stage.result.applied or not self._past:
            return
        done = {name for one in self._done for name in one.tried.remedy.split(" + ")}
        popular = [
            p for p in prescriptions(case, fitting=False) if p.remedy.popular and p.remedy.name not in done
        ]
        for one in popular[:_POPULAR_TRIED]:
            if not self._over():
                self._try(stage, case, one, depth=_DEPTH, control=True)

    def _controls(self, case: Case, fitting: Sequence[Prescription], stage: Stage) -> list[Prescription]:
        """Two that do not fit. One that changes the very expression of a candidate is another form of the same cure."""
        taken = [(edit.start, edit.end) for one in fitting for edit in one.edits]
        others = [
            one
            for one in prescriptions(case, fitting=False)
            if not one.remedy.universal
            and self._can_act(one, stage)
            and not any(edit.start < end and start < edit.end for edit in one.edits for start, end in taken)
        ]
        chosen = random.Random(_SEED)
        return chosen.sample(others, min(_CONTROLS, len(others)))

    def _try(self, stage: Stage, case: Case, one: Prescription, depth: int, *, control: bool = False) -> None:
        """A remedy in one of its ways: the first that is proved, or else the one that came furthest."""
        begun = len(self._done)
        self._try_way(stage, case, one, depth, control=control)
        middle = len(self._done)
        enough = any(done.tried.verdict in ("proved", "postpones", "unclear") for done in self._done[begun:])
        if one.otherwise is None or enough or control or self._over():
            return
        self._try(stage, case, one.otherwise, depth)
        if reach(self._done[middle:]) > reach(self._done[begun:middle]):
            del self._done[begun:middle]
        else:
            del self._done[middle:]

    def _try_way(
        self, stage: Stage, case: Case, one: Prescription, depth: int, *, control: bool = False
    ) -> None:
        texts, watched = dict(stage.texts), dict(stage.texts)
        before, upto, failing = self._before(stage, case, one)
        if one.file is not None and case.site is not None:
            key = os.path.realpath(one.file)
            texts[key] = edited(case.site.text, one.edits)
            watched[key] = observable(case, one)
        remedies = (*stage.remedies, *([one.remedy] if not one.edits else []))
        names = tuple(dict.fromkeys((*stage.remedies, one.remedy)))
        self._say(f"trying {' + '.join(r.name for r in names)}")
        result = self._trial(Plan(watched, remedies, failing))
        moved = self._distortion(stage, before, failing, result, upto, one)
        place = case.birth.birth
        following = stage_of(result, None)
        if (
            not control
            and depth < _DEPTH
            and following is not None
            and result.error is None
            and fails_elsewhere(following, stage)
            and (one.edits or one.remedy.only_wider)
        ):
            following.texts, following.remedies, following.distortion = texts, names, moved
            found = len(self._done)
            self._next(following, depth + 1, one)
            if any(done.tried.verdict in ("proved", "postpones", "unclear") for done in self._done[found:]):
                return
            self._done[found:] = [done for done in self._done[found:] if done.tried.remedy != one.remedy.name]
        stuck = any(r.leaves_steps_out for r in names) and result.applied <= stage.step.step
        verdict = "proved" if works(stage, result) and not stuck else "failed"
        if verdict == "proved" and moved is not None and moved > MOVES_TOO_MUCH:
            verdict = "distorts"
        reason = why_failed(stage, result, place.line) if verdict == "failed" else moves(moved, verdict)
        ruin = ruins_the_weights(stage, result) if verdict == "proved" else None
        if ruin is not None:
            verdict, reason = "distorts", ruin
        later = postponed(stage, result, case) if one.remedy.only_wider else None
        if later is not None:
            verdict, reason = "postpones", later
        elif verdict == "proved" and not one.remedy.is_cure:
            verdict, reason = "unclear", "finite, but what made the numbers so large is as it was"
        elif verdict == "proved" and control and one.remedy.trains_otherwise:
            # Every update is another one, so this is another course of the weights: no word on the place that failed.
            verdict, reason = (
                "unclear",
                "finite, on another course of the weights that did not come to this place",
            )
        tried = Tried(
            remedy=" + ".join(dict.fromkeys(r.name for r in names)),
            sentence="; ".join(dict.fromkeys(r.sentence for r in names)),
            verdict=verdict,
            reason=reason,
            loss=result.losses[-1][1] if result.losses else None,
            distortion=moved,
            gradient=result.learns,
            steps=max(0, result.steps - stage.step.step),
            control=control,
            popular=one.remedy.popular,
            seconds=round(result.seconds, 3),
        )
        spans = tuple((edit.start, edit.end) for edit in one.edits)
        self._done.append(
            Attempted(
                names,
                texts,
                tried,
                result.learns,
                spans,
                one.edits,
                raised=result.error is not None,
                finished=result.ended == "finished",
            )
        )

    def _next(self, stage: Stage, depth: int, first: Prescription) -> None:
        """The first birth is cured and another one shows: remedies for that one on top, or the same once more."""
        case = case_at(stage)
        for one in sorted(prescriptions(case), key=lambda p: (p.remedy.popular, p.remedy.rank)):
            again = first.remedy.only_wider and one.remedy.name == first.remedy.name
            on_top = one.edits and first.edits and not (first.remedy.only_wider and one.remedy.only_wider)
            if (again or on_top) and not self._over() and not one.remedy.popular:
                self._try(stage, case, one, depth)

    def _before(
        self, stage: Stage, case: Case, one: Prescription
    ) -> tuple[list[Tensor], int, list[Tensor | None]]:
        """The values of the same expressions without the remedy, until they fail, and where they fail."""
        if not one.edits or case.site is None or one.file is None:
            return [], -1, []
        nodes = observed_spans(case, one)
        key = (tuple(nodes), tuple(sorted(stage.texts.items())), tuple(r.name for r in stage.remedies))
        if key not in self._looked:
            site = case.site
            untouched = [Edit(start, end, site.text[start:end]) for start, end in nodes]
            texts = {**stage.texts, os.path.realpath(one.file): edited(site.text, untouched, looked_at)}
            self._looked[key] = self._trial(Plan(texts, stage.remedies))
        values = self._looked[key].values
        failing = [failing_part(value, case) for value in values]
        bad = [i for i, value in enumerate(values) if not bool(torch.isfinite(value).all())]
        return values, bad[0] if bad else len(values) - 1, failing

    def _distortion(
        self,
        stage: Stage,
        before: list[Tensor],
        failing: list[Tensor | None],
        result: TrialResult,
        upto: int,
        one: Prescription,
    ) -> float | None:
        if one.edits and before:
            moved = distortion(before, result.values, failing, upto)
        elif one.remedy.trains_otherwise:
            return None
        else:
            moved = moved_losses(stage, result)
        known = [m for m in (moved, stage.distortion) if m is not None]
        return max(known) if known else None

    # -- judging -----------------------------------------------------------------------------------------

    def _judge_gradients(self) -> None:
        """A remedy that cuts the failing sample off loses where another one lets it learn, or where one could: what a
        smooth function has rounded to 0 has a gradient in log space, whether or not that form was found."""
        one_learns = any(one.learns and one.tried.proved for one in self._done)
        rounded = self._case is not None and was_rounded_to_zero(self._case)
        for one in self._done:
            needless = one_learns or (rounded and any(remedy.cuts_off for remedy in one.remedies))
            if one.learns is False and one.tried.proved and not one.tried.control and needless:
                one.tried = replace(
                    one.tried,
                    verdict="no gradient",
                    reason="finite, but the failing sample gets no gradient any more",
                )

    def _judge_updates(self) -> None:
        """Where the learning rate that an absurd update asks for cures, what leaves that update as it is does not."""
        case = self._case
        if case is None or not any(
            one.tried.proved and MeasuredRate.name == one.tried.remedy for one in self._done
        ):
            return
        for one in self._done:
            reason = leaves_the_update(case, one.remedies) if one.tried.proved else None
            if reason is not None and not one.tried.control:
                one.tried = replace(one.tried, verdict="unclear", reason=reason)

    # -- time --------------------------------------------------------------------------------------------

    def _trial(self, plan: Plan) -> TrialResult:
        plan = replace(
            plan, until=plan.until or self._until, follow_from=plan.follow_from or self._follow_from
        )
        result = self._run(plan, max(1.0, self._left()))
        self._longest = max(self._longest, result.seconds)
        return result

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _over(self) -> bool:
        if self._left() > self._longest:
            return False
        self._remark = (
            self._remark or f"the budget of {self._seconds:.0f} s was used up; not everything was tried"
        )
        return True
