"""Stage: a failing run that candidates are applied to, and the expressions of it that must not change."""

from __future__ import annotations

import ast
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from stayfinite.findings.mechanism.kind import Judged, Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.prove.expression import looked_at
from stayfinite.prove.trial import TrialResult
from stayfinite.remedies.floors import largest_exponent, rounding_of_difference
from stayfinite.remedies.remedy import Case, Prescription, Remedy, case_of
from stayfinite.remedies.source import Edit, edited

_AT_EDGES: Final = {"acos": (0.0, math.pi), "asin": (-math.pi / 2, math.pi / 2), "acosh": (0.0,)}
"""What these functions give at the edges of their domain, where their slope is infinite."""
_NEAR_EDGE: Final = 1e-7
_OF_EXPONENTIALS: Final = frozenset({Kind.EXP_OVERFLOW, Kind.EXP_UNDERFLOW})


@dataclass(slots=True)
class Stage:
    """A failing run that a candidate is applied to: untouched, or with an earlier remedy in effect."""

    result: TrialResult
    step: FailedStep
    judged: Judged
    texts: dict[str, str] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    distortion: float | None = None
    cut_off: bool = False  # an earlier remedy has taken the gradient of what failed first


def stage_of(result: TrialResult, place: tuple[str | None, int | None] | None) -> Stage | None:
    """The failure to cure: the one at this place, or the first that has a birth."""
    found = [(step, step.judged[0]) for step in result.failures if step.judged]
    if place is not None:
        at = [pair for pair in found if (pair[1].birth.birth.file, pair[1].birth.birth.line) == place]
        found = at or found
    return Stage(result, *found[0]) if found else None


def fails_elsewhere(following: Stage, stage: Stage) -> bool:
    here, there = stage.judged.birth, following.judged.birth
    return (here.birth.line, here.op, here.phase) != (there.birth.line, there.op, there.phase)


def case_at(stage: Stage) -> Case:
    file = stage.judged.birth.birth.file
    text = None
    if file is not None:
        text = stage.texts.get(os.path.realpath(file))
        if text is None and Path(file).is_file():
            text = Path(file).read_text(encoding="utf-8", errors="strict")
    return case_of(stage.step, stage.judged, text)


def observed_spans(case: Case, one: Prescription) -> list[tuple[int, int]]:
    """The expressions that must not change: those that are edited, or what the remedy names instead."""
    site = case.site
    assert site is not None
    nodes: list[ast.expr] = getattr(one.remedy, "observed", lambda case: [])(case)
    if nodes:
        return [site.span(node) for node in nodes]
    return [(edit.start, edit.end) for edit in one.edits if not edit.statement]


def observable(case: Case, one: Prescription) -> str:
    """The edited source in which the observed expressions hand their values over."""
    site = case.site
    assert site is not None
    watched = observed_spans(case, one)
    own = {(edit.start, edit.end) for edit in one.edits}
    if set(watched) <= own:
        return edited(site.text, one.edits, looked_at)
    others = [Edit(s, e, looked_at(site.text[s:e])) for s, e in watched]
    overlapping = any(s < o.end and o.start < e for s, e in own for o in others)
    return edited(site.text, one.edits if overlapping else [*one.edits, *others])


def failing_part(value: Tensor, case: Case) -> Tensor | None:
    """Where the expression fails: what is not finite, the zeros at which the slope of a root is not, and norms of 0
    that divide."""
    bad = ~torch.isfinite(value)
    if case.kind is Kind.EXP_OVERFLOW and bool(bad.any()):
        # Beside Inf, what is nearly as large is part of the failure: a healthy value is in no such batch.
        dtype = str(value.dtype).removeprefix("torch.")
        bad |= value > math.exp(float(largest_exponent(dtype)))
    root = case.birth.phase == "backward" and case.kind is Kind.ROOT_GRADIENT_AT_ZERO
    if not bool(bad.any()) and (root or case.kind is Kind.ZERO_NORM):
        bad = value == 0
    if not bool(bad.any()) and case.birth.phase == "backward" and case.kind is Kind.INVERSE_AT_EDGE:
        for edge in _AT_EDGES.get(case.op, ()):
            bad |= (value - edge).abs() <= _NEAR_EDGE
    return bad if bool(bad.any()) else None


def brink_part(value: Tensor, case: Case) -> Tensor | None:
    """Beside the logarithm of 0, that of numbers which have begun to be rounded to 0: in no healthy batch is one.
    Beside an exponential that is Inf, those that are 0, and quotients of them: no exponential is, unless rounded.
    Beside a difference that rounding has made negative, those that are as small: they are rounding, too."""
    if not value.is_floating_point():
        return None
    if case.kind in _OF_EXPONENTIALS and not bool(torch.isfinite(value).all()):
        near = value == 0
    elif case.kind is Kind.LOG_OF_ZERO:
        near = value < math.log(torch.finfo(value.dtype).tiny)
    elif case.kind is Kind.ROOT_OF_NEGATIVE and case.operand is not None and bool((value < 0).any()):
        near = value.abs() <= rounding_of_difference(case.operand)
    else:
        return None
    return near if bool(near.any()) else None


def moved_losses(stage: Stage, result: TrialResult) -> float | None:
    """How far the losses of the healthy steps before the failing one moved."""
    before = {step: loss for step, loss in stage.result.losses if step < stage.step.step}
    pairs = [(before[step], loss) for step, loss in result.losses if step in before]
    moved = [abs(a - b) / (abs(a) + 1e-12) for a, b in pairs if a == a and b == b]
    if not moved:
        return None
    return 0.0 if max(moved) < 1e-6 else max(moved)


def nothing_failed(result: TrialResult) -> str:
    if result.ended != "finished":
        return f"nothing proved: the replay {result.ended}"
    return "nothing proved: " + (
        "the place where it began is not known" if result.failures else "the replay did not fail"
    )
