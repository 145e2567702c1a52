"""Whether a trial worked, and in words why it did not."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Final

from stayfinite.findings.mechanism.kind import DEPENDS_ON_SIZE, Kind
from stayfinite.findings.mechanism.operands import rounded_maker, zeroed_by
from stayfinite.findings.update_size import MANY_TIMES, first_absurd_update, rounded
from stayfinite.prove.stage import Stage
from stayfinite.prove.trial import TrialResult
from stayfinite.remedies.measured_rate import MeasuredRate
from stayfinite.remedies.remedy import Case, Remedy

_TOO_LARGE: Final = frozenset({Kind.GROWN, Kind.POWER_OVERFLOW})
# The numbers of these are too large, or the whole run is: a rate is an answer whatever the loss did.
_OF_THE_RATE: Final = frozenset({
    Kind.GROWN, Kind.POWER_OVERFLOW, Kind.ABSURD_PARAMETER, Kind.HALF_OVERFLOW, Kind.UNKNOWN,
})  # fmt: skip
_FEWEST_LOSSES: Final = 4
_LATEST: Final = 3
_GREW: Final = 0.5
_MANY_TIMES_OVER: Final = 1e6
_GROWS_ON: Final = 10.0
_SMOOTH: Final = ("softmax", "sigmoid", "exp", "pow", "prod")
_NEAR: Final = 8
_EXPONENTIALS: Final = ("exp", "exp2", "cosh", "sinh")
_LOGARITHMS: Final = ("log", "log2", "log10", "log1p")
MOVES_TOO_MUCH: Final = 0.01  # of their size: so far healthy values may not move
DIGITS: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # of a number, that these dtypes hold


def works(stage: Stage, result: TrialResult) -> bool:
    """Nothing failed, every loss is finite, and there are updates where there were any before."""
    if not result.clean or not all(math.isfinite(loss) for _, loss in result.losses):
        return False
    return result.applied > 0 or stage.result.applied == 0


def why_failed(stage: Stage, result: TrialResult, line: int | None) -> str:
    """In a few words; `line` is that of the birth that was to be cured."""
    if result.ended != "finished":
        return f"the run {result.ended}"
    if result.error is not None:
        return f"it raised {textwrap.shorten(result.error.splitlines()[0], 90, placeholder=' ...')}"
    if result.failures:
        judged = result.failures[0].judged
        at = judged[0].birth.birth.line if judged else None
        again = "still" if at == line or at is None else "now"
        later = result.failures[0].step - stage.step.step
        when = f", {_steps(later)} later" if later > 0 else ""
        return f"{again} not finite" + (f" at line {at}{when}" if at is not None else when)
    if result.left_bad:
        return f"every step is finite, but {result.left_bad[0]} is not any more"
    return "no update was made any more"


def judged(
    stage: Stage,
    result: TrialResult,
    case: Case,
    remedies: Sequence[Remedy],
    moved: float | None,
    *,
    control: bool,
) -> tuple[str, str]:
    """The verdict on a trial of these remedies (the last one is new), and why in a few words."""
    newest = remedies[-1]
    later = postponed(stage, result, case) if newest.only_wider else None
    if later is not None:
        return "postpones", later
    stuck = any(one.leaves_steps_out for one in remedies) and result.applied <= stage.step.step
    if not works(stage, result) or stuck:
        return "failed", why_failed(stage, result, case.birth.birth.line)
    if moved is not None and moved > _allowed(case, remedies):
        return "distorts", f"finite, but healthy values move by {_share(moved)} their size"
    otherwise = any(one.trains_otherwise for one in remedies)
    changed = moved_what_was_finite(stage, result, case) if not otherwise else None
    if changed is not None:
        return (
            "distorts",
            f"finite, but the loss of this step, which was finite before, moves by {changed:.1g} of its size",
        )
    idle = has_nothing_to_learn(stage, result, case)
    if idle is not None:
        return "unclear", idle
    ruin = ruins_the_weights(stage, result)
    if ruin is not None:
        return "distorts", ruin
    if not all(one.is_cure for one in remedies):
        return "unclear", "finite, but what made the numbers so large is as it was"
    if any(load.enormous for load in case.step.run.loads) and case.kind in DEPENDS_ON_SIZE:
        return "unclear", "finite, but the weights that were loaded are as enormous as they were"
    left = next((why for one in remedies if (why := one.leaves(case)) is not None), None)
    if left is not None:
        return "unclear", left
    if newest.trains_otherwise and (control or not rate_may_be_the_cause(stage, case)):
        # Every update is another one, so this is another course of the weights: no word on the place that failed.
        return "unclear", "finite, on another course of the weights that did not come to this place"
    return "proved", ""


def _share(moved: float) -> str:
    """A number that a person can read: beside a healthy 0 everything is 1e+300 times as large."""
    return f"{moved:.1g} of" if moved < _MANY_TIMES_OVER else "many times"


def rate_may_be_the_cause(stage: Stage, case: Case) -> bool:
    """Whether a rate, or a clip, can be the answer to this birth, and not only a slower way to the same place.

    A function that is left by its argument (an exponent that grows because the data ask for it, an intensity that
    falls below 0) is left at a tenth of the rate as well, ten times later: beyond the steps of a trial. What speaks
    for the rate is a loss that was on its way up, or an update of absurd size.
    """
    if case.kind in _OF_THE_RATE or first_absurd_update(case.step) is not None:
        return True
    before = [one for step, one in stage.result.losses if step < stage.step.step and math.isfinite(one)]
    if len(before) < _FEWEST_LOSSES:
        return True  # too few to tell
    rise = max(before[-_LATEST:]) - min(before)
    return rise > _GREW * max(abs(one) for one in before)


def _allowed(case: Case, remedies: Sequence[Remedy]) -> float:
    """How far healthy values may move. The same formula in a wider dtype shows what the narrow one had rounded: where
    nearly equal numbers are subtracted, that is half of its digits. What changes the formula as well may not."""
    if not all(one.only_wider for one in remedies):
        return MOVES_TOO_MUCH
    narrow = [DIGITS[o.dtype] for o in case.birth.operands if o.dtype in DIGITS]
    return max(MOVES_TOO_MUCH, math.sqrt(max(narrow, default=0.0)))


def moved_what_was_finite(stage: Stage, result: TrialResult, case: Case) -> float | None:
    """A root of a negative number that the loss does not depend on: then what stands in its place may not move it."""
    if case.kind is not Kind.ROOT_OF_NEGATIVE or case.step.trigger != "gradient":
        return None
    before, after = (
        next((loss for step, loss in one.losses if step == stage.step.step), math.nan)
        for one in (stage.result, result)
    )
    moved = abs(after - before) / (abs(before) + 1e-12)
    return moved if moved > MOVES_TOO_MUCH else None  # False where a loss is not known


def has_nothing_to_learn(stage: Stage, result: TrialResult, case: Case) -> str | None:
    """What is empty in every step is no odd batch: a loss of 0 instead of NaN hides that nothing is trained."""
    after = [loss for step, loss in result.losses if step >= stage.step.step]
    if case.kind is not Kind.EMPTY_REDUCTION or len(after) < _FEWEST_LOSSES or any(after):
        return None
    return f"finite, but the loss is 0 in this step and in the next {len(after) - 1}: it is empty in each of them"


def ruins_the_weights(stage: Stage, result: TrialResult) -> str | None:
    """A division by next to nothing is finite, and so is its gradient: the update that it gives is no training."""
    before = [moved for step, moved in stage.result.moved if step < stage.step.step]
    after = [moved for step, moved in result.moved if step >= stage.step.step]
    largest = max(after, default=0.0)
    if largest < MANY_TIMES or max(before, default=0.0) >= MANY_TIMES:
        return None
    return f"finite, but an update then moves the weights by {largest:.2g} times their size"


def postponed(stage: Stage, result: TrialResult, case: Case) -> str | None:
    """Why a wider dtype is no cure: finite now, it fails soon after, or what was too large goes on growing."""
    if result.ended != "finished" or result.error is not None:
        return None
    if result.failures:
        later = result.failures[0].step - stage.step.step
        return f"finite now, not finite {_steps(later)} later: it postpones" if later > 0 else None
    after = [abs(loss) for step, loss in result.losses if step >= stage.step.step]
    if case.kind not in _TOO_LARGE or len(after) < 2 or after[-1] < _GROWS_ON * after[0]:
        return None
    return f"finite now, but the loss grows on from {after[0]:.2g} to {after[-1]:.2g}: it postpones"


def has_smooth_form(case: Case) -> bool:
    """Whether the right fix gives the failing sample a gradient, whether or not that form was found.

    What a smooth function has rounded to 0 has a gradient in log space; so has an exponential that overflows and
    reaches the loss through a logarithm or a ratio of exponentials only, and a sum of them that vanishes and divides.
    Not so what a mask has set to 0, a row without any valid entry, bad data, labels that cannot be aligned, an
    exponential that is itself a term of the loss, or 0 times Inf that a mask leaves out: there a gradient of 0 is
    right, or all that there is.
    """
    operand = case.operand
    trained = operand is not None and (operand.requires_grad or case.birth.phase == "backward")
    if operand is None or not operand.learnt or not trained:
        return False
    if case.kind is Kind.EXP_OVERFLOW:
        return case.op in _EXPONENTIALS and bool(case.step.narrows)
    if case.kind is Kind.EXP_UNDERFLOW:
        return True
    taken = case.kind in (Kind.LOG_OF_ZERO, Kind.RATIO_INTO_LOG) or (
        case.kind is Kind.EPS_VANISHED and case.op in _LOGARITHMS
    )
    smooth = rounded_maker(operand, *_SMOOTH, within=_NEAR)
    masked = zeroed_by(operand, within=_NEAR)
    if smooth is not None and masked is not None and masked.distance < smooth.distance:
        return False  # the zeros are the mask's
    return taken and smooth is not None


def leaves_the_update(case: Case, remedies: Sequence[Remedy]) -> str | None:
    """Why these are no cure where one update has ruined the weights: with them it is still larger than the weights."""
    update = first_absurd_update(case.step)
    changed = [one for one in remedies if one.of_updates]
    if update is None or any(isinstance(one, MeasuredRate) or one.rate_factor is None for one in changed):
        return None
    left = update.moved * min((one.rate_factor or 1.0 for one in changed), default=1.0)
    if left <= 1.0:
        return None
    size = f"about {rounded(left)} times as large as the weights" if math.isfinite(left) else "beyond float32"
    return f"finite, but the update that ruined the weights is still {size}"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
