"""Counterfactual: each candidate is applied to the replay and judged, beside a control arm that should not help."""

from __future__ import annotations

import ast
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from stayfinite.findings.mechanism.kind import Judged, Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.trial import ProofReport, Tried
from stayfinite.prove.expression import distortion, looked_at
from stayfinite.prove.trial import Plan, Run, TrialResult
from stayfinite.remedies.remedy import Case, Prescription, Remedy, case_of, prescriptions
from stayfinite.remedies.source import Edit, edited, unified_diff

_NULL_RUNS, _CONTROLS, _DEPTH = 3, 2, 3
_SEED = 20240229
_POPULAR_TRIED = 3
_FURTHER_STEPS = 20
_MOVES_TOO_MUCH = 0.01  # of their size: so far healthy values may not move


@dataclass(slots=True)
class Attempted:
    """A candidate with what came of it, while others are still being tried."""

    remedies: tuple[Remedy, ...]
    texts: dict[str, str]  # the edited files, without anything that only looks
    tried: Tried
    learns: bool | None = None
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Stage:
    """A failing run that a candidate is applied to: untouched, or with an earlier remedy in effect."""

    result: TrialResult
    step: FailedStep
    judged: Judged
    texts: dict[str, str] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    distortion: float | None = None


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
        self._looked: dict[tuple[object, ...], TrialResult] = {}
        self._done: list[Attempted] = []
        self._remark = ""
        self._longest = 0.0

    def report(self, expected: tuple[str | None, int | None] | None = None) -> ProofReport:
        """Everything that was tried, best first; `expected` is the place of the birth that was reported."""
        null = [self._trial(Plan()) for _ in range(1)]
        stage = _stage(null[0], expected)
        if stage is None:
            return ProofReport(remark=_nothing_failed(null[0]))
        place = stage.judged.birth.birth
        null += [self._trial(Plan()) for _ in range(_NULL_RUNS - 1) if self._left() > 0]
        failed = sum(_stage(one, (place.file, place.line)) is not None for one in null)
        report = ProofReport(file=place.file, line=place.line)
        if failed < len(null):
            report.blame = "flaky"
            report.remark = (
                f"untouched, the replay failed in {failed} of {len(null)} runs: nothing can be proved on it"
            )
            return report
        self._until = stage.step.step + _FURTHER_STEPS
        self._try_all(stage)
        self._judge_gradients()
        report.tried = [one.tried for one in sorted(self._done, key=_quality)]
        best = next(
            (one for one in sorted(self._done, key=_quality) if one.tried.proved and not one.tried.control),
            None,
        )
        for one in sorted(self._done, key=_quality):  # the best that is a change of the source
            if one.tried.proved and not one.tried.control and report.patch is None:
                report.patch = _patch(one)
                report.patched_by = one.tried.remedy if report.patch is not None else None
        report.remark = self._remark
        if report.worthless:
            working = ", ".join(one.remedy for one in report.tried if one.control and one.proved)
            report.remark = (
                f"a control that should not help worked as well ({working}): the proof is worth nothing"
            )
        elif best is None and not report.remark:
            report.remark = "nothing proved: " + (
                "no remedy is known for this"
                if not self._done
                else "no remedy that was tried makes it finite"
            )
        return report

    # -- trying ------------------------------------------------------------------------------------------

    def _try_all(self, stage: _Stage) -> None:
        case = _case(stage)
        fitting = [one for one in prescriptions(case) if self._can_act(one, stage)]
        order = sorted(fitting, key=lambda p: (p.remedy.popular, p.remedy.rank, p.remedy.name))
        for one in order:
            if self._over():
                break
            self._try(stage, case, one, depth=1)
        for one in self._controls(case, fitting, stage):
            if self._over():
                break
            self._try(stage, case, one, depth=_DEPTH, control=True)
        self._try_popular(stage, case)

    def _can_act(self, one: Prescription, stage: _Stage) -> bool:
        """An edit always; what changes updates where there are any, and before the failure if it changes training."""
        if one.edits:
            return True
        if stage.step.phase == "optimizer":
            return True
        return bool(stage.result.applied) and (self._past or not one.remedy.trains_otherwise)

    def _try_popular(self, stage: _Stage, case: Case) -> None:
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

    def _controls(self, case: Case, fitting: Sequence[Prescription], stage: _Stage) -> list[Prescription]:
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

    def _try(
        self, stage: _Stage, case: Case, one: Prescription, depth: int, *, control: bool = False
    ) -> None:
        texts, watched = dict(stage.texts), dict(stage.texts)
        before, upto, failing = self._before(stage, case, one)
        if one.file is not None and case.site is not None:
            key = os.path.realpath(one.file)
            texts[key] = edited(case.site.text, one.edits)
            watched[key] = _observable(case, one)
        remedies = (*stage.remedies, *([one.remedy] if not one.edits else []))
        names = tuple(dict.fromkeys((*stage_names(stage), one.remedy)))
        self._say(f"trying {' + '.join(r.name for r in names)}")
        result = self._trial(Plan(watched, remedies, failing))
        moved = self._distortion(stage, before, failing, result, upto, one)
        place = case.birth.birth
        following = _stage(result, None)
        if (
            not control
            and depth < _DEPTH
            and following is not None
            and result.error is None
            and _elsewhere(following, stage)
            and one.edits
        ):
            following.texts, following.remedies, following.distortion = texts, names, moved
            found = len(self._done)
            self._next(following, depth + 1)
            if any(done.tried.proved for done in self._done[found:]):
                return
        verdict = "proved" if self._works(stage, result) else "failed"
        if verdict == "proved" and moved is not None and moved > _MOVES_TOO_MUCH:
            verdict = "distorts"
        tried = Tried(
            remedy=" + ".join(r.name for r in names),
            sentence="; ".join(r.sentence for r in names),
            verdict=verdict,
            reason=self._reason(stage, result, place.line) if verdict == "failed" else _moves(moved, verdict),
            loss=result.losses[-1][1] if result.losses else None,
            distortion=moved,
            steps=max(0, result.steps - stage.step.step),
            control=control,
            popular=one.remedy.popular,
            seconds=round(result.seconds, 3),
        )
        spans = tuple((edit.start, edit.end) for edit in one.edits)
        self._done.append(Attempted(names, texts if one.edits else {}, tried, result.learns, spans))

    def _next(self, stage: _Stage, depth: int) -> None:
        """The first birth is cured and another one shows: remedies for that one on top."""
        case = _case(stage)
        for one in sorted(prescriptions(case), key=lambda p: (p.remedy.popular, p.remedy.rank)):
            if one.edits and not self._over() and not one.remedy.popular:
                self._try(stage, case, one, depth)

    def _before(
        self, stage: _Stage, case: Case, one: Prescription
    ) -> tuple[list[Tensor], int, list[Tensor | None]]:
        """The values of the same expressions without the remedy, until they fail, and where they fail."""
        if not one.edits or case.site is None or one.file is None:
            return [], -1, []
        nodes = _observed(case, one)
        key = (tuple(nodes), tuple(sorted(stage.texts.items())), tuple(r.name for r in stage.remedies))
        if key not in self._looked:
            site = case.site
            untouched = [Edit(start, end, site.text[start:end]) for start, end in nodes]
            texts = {**stage.texts, os.path.realpath(one.file): edited(site.text, untouched, looked_at)}
            self._looked[key] = self._trial(Plan(texts, stage.remedies))
        values = self._looked[key].values
        failing = [_failing(value, case) for value in values]
        bad = [i for i, value in enumerate(values) if not bool(torch.isfinite(value).all())]
        return values, bad[0] if bad else len(values) - 1, failing

    def _distortion(
        self,
        stage: _Stage,
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
            moved = _moved_losses(stage, result)
        known = [m for m in (moved, stage.distortion) if m is not None]
        return max(known) if known else None

    # -- judging -----------------------------------------------------------------------------------------

    def _works(self, stage: _Stage, result: TrialResult) -> bool:
        if not result.clean:
            return False
        losses = [loss for _, loss in result.losses]
        finite = all(torch.isfinite(torch.tensor(losses)).tolist()) if losses else True
        return finite and (result.applied > 0 or stage.result.applied == 0)

    def _reason(self, stage: _Stage, result: TrialResult, line: int | None) -> str:
        if result.ended != "finished":
            return f"the run {result.ended}"
        if result.error is not None:
            return f"it raised {result.error}"
        if result.failures:
            judged = result.failures[0].judged
            at = judged[0].birth.birth.line if judged else None
            again = "still" if at == line or at is None else "now"
            later = result.failures[0].step - stage.step.step
            when = f", {later} steps later" if later > 0 else ""
            return f"{again} not finite" + (f" at line {at}{when}" if at is not None else when)
        if not result.applied and stage.result.applied:
            return "no update was made any more"
        return ""

    def _judge_gradients(self) -> None:
        """A remedy that cuts the failing sample off loses where another one lets it learn."""
        if not any(one.learns and one.tried.proved for one in self._done):
            return
        for one in self._done:
            if one.learns is False and one.tried.proved and not one.tried.control:
                one.tried = replace(
                    one.tried,
                    verdict="no gradient",
                    reason="finite, but the failing sample gets no gradient any more",
                )

    # -- time --------------------------------------------------------------------------------------------

    def _trial(self, plan: Plan) -> TrialResult:
        result = self._run(replace(plan, until=self._until), max(1.0, self._left()))
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


def stage_names(stage: _Stage) -> tuple[Remedy, ...]:
    return stage.remedies


def _stage(result: TrialResult, place: tuple[str | None, int | None] | None) -> _Stage | None:
    """The failure to cure: the one at this place, or the first that has a birth."""
    found = [(step, step.judged[0]) for step in result.failures if step.judged]
    if place is not None:
        at = [pair for pair in found if (pair[1].birth.birth.file, pair[1].birth.birth.line) == place]
        found = at or found
    return _Stage(result, *found[0]) if found else None


def _elsewhere(following: _Stage, stage: _Stage) -> bool:
    here, there = stage.judged.birth, following.judged.birth
    return (here.birth.line, here.op, here.phase) != (there.birth.line, there.op, there.phase)


def _case(stage: _Stage) -> Case:
    file = stage.judged.birth.birth.file
    text = None
    if file is not None:
        text = stage.texts.get(os.path.realpath(file))
        if text is None and Path(file).is_file():
            text = Path(file).read_text(encoding="utf-8", errors="strict")
    return case_of(stage.step, stage.judged, text)


def _observed(case: Case, one: Prescription) -> list[tuple[int, int]]:
    """The expressions that must not change: those that are edited, or what the remedy names instead."""
    site = case.site
    assert site is not None
    nodes: list[ast.expr] = getattr(one.remedy, "observed", lambda case: [])(case)
    if nodes:
        return [site.span(node) for node in nodes]
    return [(edit.start, edit.end) for edit in one.edits if not edit.statement]


def _observable(case: Case, one: Prescription) -> str:
    """The edited source in which the observed expressions hand their values over."""
    site = case.site
    assert site is not None
    watched = _observed(case, one)
    own = {(edit.start, edit.end) for edit in one.edits}
    if set(watched) <= own:
        return edited(site.text, one.edits, looked_at)
    others = [Edit(s, e, looked_at(site.text[s:e])) for s, e in watched]
    overlapping = any(s < o.end and o.start < e for s, e in own for o in others)
    return edited(site.text, one.edits if overlapping else [*one.edits, *others])


def _failing(value: Tensor, case: Case) -> Tensor | None:
    """Where the expression fails: what is not finite, or the zeros at which the slope of a root is not."""
    bad = ~torch.isfinite(value)
    if not bool(bad.any()) and case.birth.phase == "backward" and case.kind is Kind.ROOT_GRADIENT_AT_ZERO:
        bad = value == 0
    return bad if bool(bad.any()) else None


def _moved_losses(stage: _Stage, result: TrialResult) -> float | None:
    """How far the losses of the healthy steps before the failing one moved."""
    before = {step: loss for step, loss in stage.result.losses if step < stage.step.step}
    pairs = [(before[step], loss) for step, loss in result.losses if step in before]
    moved = [abs(a - b) / (abs(a) + 1e-12) for a, b in pairs if a == a and b == b]
    if not moved:
        return None
    return 0.0 if max(moved) < 1e-6 else max(moved)


def _moves(moved: float | None, verdict: str) -> str:
    return f"finite, but healthy values move by {moved:.1g} of their size" if verdict == "distorts" else ""


def _quality(one: Attempted) -> tuple[object, ...]:
    """Proved before failed; exact before not; the remedy that is meant for it before the crude one."""
    tried = one.tried
    moved = tried.distortion if tried.distortion is not None else 1e-3
    crude = any(r.trains_otherwise for r in one.remedies)
    rank = max((r.rank for r in one.remedies), default=9)
    # At the brink the plain form itself is inexact (the logarithm of a subnormal number), an exact form is not.
    exact = 5e-3 if rank <= 1 else 1e-5
    rough = 0 if moved < exact else (1 if moved < 1e-2 else 2)
    return (
        tried.control,
        not tried.proved,
        crude,
        one.learns is False,
        rough,
        rank,
        len(one.remedies),
        moved,
    )


def _patch(best: Attempted) -> str | None:
    diffs = []
    for file, text in best.texts.items():
        before = Path(file).read_text(encoding="utf-8")
        if before != text:
            diffs.append(unified_diff(before, text, file))
    return "".join(diffs) or None


def _nothing_failed(result: TrialResult) -> str:
    if result.ended != "finished":
        return f"nothing proved: the replay {result.ended}"
    return "nothing proved: " + (
        "the place where it began is not known" if result.failures else "the replay did not fail"
    )
