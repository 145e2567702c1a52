"""Candidates: the remedies that fit a birth and a control arm of those that do not, each tried on the replay."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stayfinite.findings.trial import Tried
from stayfinite.prove.attempted import Attempted, reach
from stayfinite.prove.expression import distortion, looked_at
from stayfinite.prove.judgement import judged
from stayfinite.prove.stage import (
    Stage,
    brink_part,
    case_at,
    failing_part,
    fails_elsewhere,
    moved_losses,
    observable,
    observed_spans,
    stage_of,
)
from stayfinite.prove.trial import Plan, TrialResult
from stayfinite.prove.trials import Trials
from stayfinite.remedies.floors import rounding_of_difference
from stayfinite.remedies.remedy import Case, Prescription, prescriptions
from stayfinite.remedies.source import Edit, edited

_CONTROLS, _DEPTH = 2, 3
_SEED = 20240229
_POPULAR_TRIED = 3


class Candidates:
    """Tries them one after the other while there is time; `done` is what came of each."""

    def __init__(self, trial: Trials, say: Callable[[str], None], *, past: bool) -> None:
        """`past`: a trial begins before the failing step, so that a rate or a clip has steps to act on."""
        self._trial, self._say, self._past = trial, say, past
        self._looked: dict[tuple[object, ...], TrialResult] = {}
        self.done: list[Attempted] = []

    def try_all(self, stage: Stage, case: Case) -> None:
        """The best first, then the controls, then what is recommended for everything."""
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
            if self._trial.over():
                break
            self._try(stage, case, one, depth=1)
        for one in self._controls(case, fitting, stage):
            if self._trial.over():
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
        done = {name for one in self.done for name in one.tried.remedy.split(" + ")}
        popular = [
            p for p in prescriptions(case, fitting=False) if p.remedy.popular and p.remedy.name not in done
        ]
        for one in popular[:_POPULAR_TRIED]:
            if not self._trial.over():
                self._try(stage, case, one, depth=_DEPTH, control=True)

    def _controls(self, case: Case, fitting: Sequence[Prescription], stage: Stage) -> list[Prescription]:
        """Two that do not fit. One that changes the very expression of a candidate is another form of the same cure."""
        taken = [(edit.start, edit.end) for one in fitting for edit in one.edits]
        others = [
            one
            for one in prescriptions(case, fitting=False)
            if not one.remedy.universal
            # more range helps whatever fails in half precision
            and not (one.remedy.only_wider and case.in_half)
            and self._can_act(one, stage)
            and not any(edit.start < end and start < edit.end for edit in one.edits for start, end in taken)
        ]
        chosen = random.Random(_SEED)
        return chosen.sample(others, min(_CONTROLS, len(others)))

    def _try(self, stage: Stage, case: Case, one: Prescription, depth: int, *, control: bool = False) -> None:
        """A remedy in one of its ways: the first that is proved, or else the one that came furthest."""
        begun = len(self.done)
        self._try_way(stage, case, one, depth, control=control)
        middle = len(self.done)
        enough = any(done.tried.verdict in ("proved", "postpones", "unclear") for done in self.done[begun:])
        if one.otherwise is None or enough or control or self._trial.over():
            return
        self._try(stage, case, one.otherwise, depth)
        if reach(self.done[middle:]) > reach(self.done[begun:middle]):
            del self.done[begun:middle]
        else:
            del self.done[middle:]

    def _try_way(
        self, stage: Stage, case: Case, one: Prescription, depth: int, *, control: bool = False
    ) -> None:
        texts, watched = dict(stage.texts), dict(stage.texts)
        before, upto, failing = self.before(stage, case, one)
        if one.file is not None and case.site is not None:
            key = os.path.realpath(one.file)
            texts[key] = edited(case.site.text, one.edits)
            watched[key] = observable(case, one)
        remedies = (*stage.remedies, *([one.remedy] if not one.edits else []))
        names = tuple(dict.fromkeys((*stage.remedies, one.remedy)))
        self._say(f"trying {' + '.join(r.name for r in names)}")
        plan = Plan(watched, remedies, failing)
        result = self._trial.located(plan, self._trial(plan))
        moved = self._distortion(stage, case, before, failing, result, upto, one)
        following = stage_of(result, None)
        if (
            not control
            and depth < _DEPTH
            and following is not None
            and result.error is None
            and fails_elsewhere(following, stage)
            # a stage of which every batch was left out has cured nothing that another remedy could go on from
            and not (one.remedy.leaves_steps_out and following.step.step <= stage.step.step)
            and (one.edits or one.remedy.only_wider)
        ):
            following.texts, following.remedies, following.distortion = texts, names, moved
            following.cut_off = stage.cut_off or (one.remedy.cuts_off and result.learns is False)
            found = len(self.done)
            self._next(following, depth + 1, one)
            if any(done.tried.verdict in ("proved", "postpones", "unclear") for done in self.done[found:]):
                return
            self.done[found:] = [done for done in self.done[found:] if done.tried.remedy != one.remedy.name]
        verdict, reason = judged(stage, result, case, names, moved, control=control)
        learns = False if stage.cut_off else result.learns
        tried = Tried(
            remedy=" + ".join(dict.fromkeys(r.name for r in names)),
            sentence="; ".join(dict.fromkeys(r.sentence for r in names)),
            verdict=verdict,
            reason=reason,
            loss=result.losses[-1][1] if result.losses else None,
            distortion=moved,
            gradient=learns,
            steps=max(0, result.steps - stage.step.step),
            control=control,
            popular=one.remedy.popular,
            seconds=round(result.seconds, 3),
        )
        spans = tuple((edit.start, edit.end) for edit in one.edits)
        self.done.append(
            Attempted(
                names,
                texts,
                tried,
                learns,
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
            if (again or on_top) and not self._trial.over() and not one.remedy.popular:
                self._try(stage, case, one, depth)

    def before(
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
        case: Case,
        before: list[Tensor],
        failing: list[Tensor | None],
        result: TrialResult,
        upto: int,
        one: Prescription,
    ) -> float | None:
        if one.edits and before:
            brink = [brink_part(value, case) for value in before]
            operand = case.operand if one.remedy.ends_cancelling else None
            noise = rounding_of_difference(operand) if operand is not None else 0.0
            left_out = [_either(*pair) for pair in zip(failing, brink, strict=True)]
            moved = distortion(before, result.values, left_out, upto, noise)
        elif one.remedy.trains_otherwise:
            return None
        else:
            moved = moved_losses(stage, result)
        known = [m for m in (moved, stage.distortion) if m is not None]
        return max(known) if known else None


def _either(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one | other if one is not None and other is not None else one if one is not None else other
