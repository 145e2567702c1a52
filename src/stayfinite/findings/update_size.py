"""How far single updates moved the weights: the plainest sign of a learning rate that is far too high."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import OptimizerFacts, Place, StepRecord

MANY_TIMES = 20.0  # the size of the weights; a fresh Adam on small weights moves them a few times their size
USUAL_UPDATE = 1e-3  # of the size of the weights
_USUAL_RATE = 1e-3  # where the update itself could not be measured
_LEAST_RATE = 1e-8  # that anybody trains with
_RECENT = 16
_ABSURD = 1.0
_GROWING, _GROWN = 3, 30.0  # losses that show growth, and how far the last is above the first
_HARDLY_ANY = 1e-2  # a loss may begin at next to nothing: that of standardised advantages
# how far an update went, how high the loss is ever since, how many losses show that (one may be an outlier), and the
# least learning rate with which that is enough; a rate of 1 and such an update need no loss to tell
_RUINS = (
    (MANY_TIMES, 1e6, 3, 0.0),
    (MANY_TIMES, 10.0, 8, 0.0),
    (2.0, 1e3, 8, 0.0),
    (MANY_TIMES, 2.0, 8, 1.0),
    (1e4, 0.0, 8, 1.0),
    (0.2, 3.0, 16, 0.1),  # slowly, by updates of hundreds of times the usual size
)
_EITHER_WAY = 1e3  # times: so far up or down no loss goes that is well
_DEAD = 8  # steps without a gradient
_LOOKED_AT = 32  # of the updates that went far: what the first ones did not do, the later ones did not begin
_LEAST_RUIN = min(far for far, *_ in _RUINS)
_ENORMOUS, _LEARNT = 100.0, 8  # times the size of the weights; losses that show what had been learnt
_BEFORE, _RAISED = 16, 1.5  # losses before an update, and how far a learning rate is raised
STILL_SCALED = "finite, but the gradients are still multiplied by the loss scale, which changes"


@dataclass(frozen=True, slots=True)
class Ruin:
    """A run that stayed finite, but whose loss never came back from one update."""

    step: int
    lr: float | None
    moved: float  # times the size of the weights
    before: float
    after: float
    lowest: float  # magnitude since then
    stepped: Place
    dead: bool = False  # every gradient after it was exactly 0
    by_growth: bool = False  # the loss had gone up before: the update measures no rate
    # the learning rate shortly before, and its last step, if it was raised
    lower_until: tuple[float, int] | None = None


def ruin(history: Sequence[StepRecord]) -> Ruin | None:
    """The update that ruined a finished run: far too large, and the loss of the same optimizers many times as high ever
    since."""
    far_ones = [
        (number, record, record.update_ratio)
        for number, record in enumerate(history)
        if record.applied and record.update_ratio is not None and record.update_ratio >= _LEAST_RUIN
    ]
    first = far_ones[:_LOOKED_AT]
    for number, record, moved in first + [far for far in far_ones[_LOOKED_AT:] if far[2] >= _ENORMOUS][:1]:
        later = [r for r in history[number + 1 :] if r.who == record.who]
        earlier = _losses(r for r in history[: number + 1] if r.who == record.who)
        losses = _losses(later)
        before, after = list(map(abs, earlier)), list(map(abs, losses))
        dead = len(later) >= _DEAD and all(r.grad_norm == 0.0 for r in later)
        rate = record.own_rate or 0.0
        rose = bool(earlier and losses) and min(losses) > max(earlier)  # one below 0 may go far and be well
        if (
            before
            and after
            and (
                (dead and moved >= MANY_TIMES and rate >= _ABSURD)
                or any(
                    moved >= far
                    and len(after) >= lasting
                    and min(after) >= times * max([*before, _HARDLY_ANY])
                    and (rose or not 0 < times < _EITHER_WAY)
                    and rate >= least
                    for far, times, lasting, least in _RUINS
                )
            )
        ):
            return Ruin(
                record.step, record.own_rate, moved, earlier[-1], losses[-1], min(after), record.stepped, dead
            )
        if moved >= _ENORMOUS and len(before) >= _LEARNT and len(after) >= 2 * _LEARNT:
            best = min(earlier[-_BEFORE:], key=abs)
            # it never came back to what had been learnt
            if min(losses) > best and min(after) >= 2 * max(abs(best), _HARDLY_ANY):
                return Ruin(
                    record.step,
                    record.own_rate,
                    moved,
                    best,
                    losses[-1],
                    min(after),
                    record.stepped,
                    by_growth=before[-1] > _GROWN * max(abs(best), _HARDLY_ANY),
                    lower_until=_lower_until(history[:number], record),
                )
    return None


def _lower_until(before: Sequence[StepRecord], record: StepRecord) -> tuple[float, int] | None:
    rate = record.own_rate or 0.0
    for earlier in reversed(before[-_RECENT:]):
        if earlier.who == record.who and earlier.own_rate and earlier.own_rate * _RAISED <= rate:
            return earlier.own_rate, earlier.step
    return None


def _losses(records: Iterable[StepRecord]) -> list[float]:
    return [r.loss for r in records if r.loss is not None and math.isfinite(r.loss)]


def rounded(moved: float) -> str:
    """Two digits, as people write them: 15, 190, 24000, 3e+19."""
    return f"{float(f'{moved:.2g}'):g}"


def how_far(moved: float) -> str:
    """An update, measured as `update_ratio` is."""
    if not math.isfinite(moved):
        return "so far that the update is beyond float32"
    return f"by about {rounded(moved)} times their own size (measured on the largest tensors)"


def largest_update(step: FailedStep) -> float | None:
    """How many times their own size the weights were moved by one recent update, if that is absurd; else None."""
    before = [record for record in step.run.history[-_RECENT:] if record.step < step.step]
    ratios = [
        record.update_ratio for record in before if _went_far(record) and record.update_ratio is not None
    ]
    born = step.judged[0] if step.judged else None
    by_itself = (
        born.birth.phase == "optimizer" and born.how.kind is Kind.GROWN
        if born is not None
        else step.bad_update
    )
    if by_itself and (learning_rate(step) or 0.0) >= _ABSURD:
        ratios.append(math.inf)  # the update itself left the range
    return max(ratios, default=None)


@dataclass(frozen=True, slots=True)
class AbsurdUpdate:
    """The first recent update that moved the weights by many times their size: they were ordinary before it."""

    ago: int  # steps before the one that failed
    lr: float
    moved: float  # times the size of the weights; infinite if float32 does not hold the update
    by_growth: bool = False  # it is as large as what had grown before, and measures no rate


def usual_rate(lr: float, moved: float) -> float:
    """The learning rate, to one digit, at which an update that moved the weights so far has a usual size."""
    return float(f"{lr * USUAL_UPDATE / moved if is_measure(lr, moved) else _USUAL_RATE:.0e}")


def is_measure(lr: float, moved: float) -> bool:
    """An update says what the rate should have been, if it grew in proportion to it: L-BFGS makes many in one step."""
    return math.isfinite(moved) and lr * USUAL_UPDATE / moved >= _LEAST_RATE


def first_absurd_update(step: FailedStep) -> AbsurdUpdate | None:
    """Where what is too large came from one update; None if none was so large, or its learning rate is not known."""
    if largest_update(step) is None:
        return None
    for record in step.run.history[-_RECENT:]:
        moved = record.update_ratio if _went_far(record) else None
        if record.step < step.step and moved is not None and (rate := record.own_rate):
            grew = _had_grown(step.run.history, record)
            return AbsurdUpdate(step.step - record.step, rate, moved, grew)
    rate = learning_rate(step)
    return AbsurdUpdate(0, rate, math.inf) if rate else None


def _had_grown(history: Sequence[StepRecord], record: StepRecord) -> bool:
    """The loss had gone up, step by step, before this update."""
    before = list(map(abs, _losses(r for r in history if r.step <= record.step and r.who == record.who)))
    return len(before) > _GROWING and before[-1] > _GROWN * max(before[0], _HARDLY_ANY)


def learning_rate(step: FailedStep) -> float | None:
    """That of the recent update which went many times too far; else of the last one, or else of the first optimizer."""
    known = [record for record in step.run.history if record.own_rate is not None]
    far = [record for record in known[-_RECENT:] if record.step < step.step and _went_far(record)]
    if far:
        return max(far, key=lambda record: record.update_ratio or 0.0).own_rate
    return known[-1].own_rate if known else next((optimizer.lr for optimizer in step.run.optimizers), None)


def steps_past_the_scaler(step: FailedStep) -> bool:
    """Updates were made of gradients that were still multiplied by a loss scale: their size is that of the scale."""
    return any(one.bypassed and one.scale > 1.0 for one in step.run.scalers)


def _went_far(record: StepRecord) -> bool:
    return record.update_ratio is not None and record.update_ratio >= MANY_TIMES


def first_far(history: Iterable[StepRecord]) -> StepRecord | None:
    """The first update that moved the weights by many times their size."""
    return next((record for record in history if record.applied and _went_far(record)), None)


def absurd_rate(step: FailedStep) -> bool:
    """The learning rate is large by itself, and an update went far too far: then the data is not to blame."""
    return (learning_rate(step) or 0.0) >= _ABSURD and largest_update(step) is not None


def sets_itself_growing(optimizer: OptimizerFacts) -> bool:
    """Its momentum or its weight decay makes weights grow at any data and any learning rate near this one."""
    return optimizer.momentum >= 1.0 or overshoots(optimizer)


def overshoots(optimizer: OptimizerFacts) -> bool:
    """1 - rate * decay is below -1: the weights change their sign and grow at every step."""
    rate, decay = optimizer.shrinking or (0.0, 0.0)
    return rate * decay > 2.0
