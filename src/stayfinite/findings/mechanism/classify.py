"""From the facts of a birth to its mechanism: the judges, the more telling ones first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stayfinite.findings.mechanism import domains, hidden, incoming, overflow, quotients, reductions
from stayfinite.findings.mechanism.kind import Judged, Kind, Mechanism
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth

_JUDGES: Final[tuple[Callable[[FailedStep, TracedBirth], Mechanism | None], ...]] = (
    overflow.inverse_of_a_spent_scale,
    incoming.uninitialised,
    incoming.from_the_batch,
    quotients.in_the_optimizer,
    reductions.ctc,
    reductions.index,
    reductions.spread,
    reductions.masked_rows,
    reductions.nothing,
    domains.eps_vanished,
    hidden.behind_a_where,
    hidden.mask,
    hidden.mask_in_the_loss,
    hidden.infinity_as_the_loss,
    incoming.came_in,
    domains.inverse_function,
    reductions.decomposition,
    quotients.box_without_size,
    domains.logarithm,
    quotients.division,
    quotients.zero_norm,
    domains.root,
    domains.special_function,
    hidden.zero_times_infinity,
    overflow.exponential,
    overflow.half,
    quotients.tiny_divisor,
    hidden.mask_without_softmax,
    hidden.behind_anything,
    incoming.absurd_parameter,
    overflow.grown,
)


_LOOKED_AT = 8


def judge(step: FailedStep) -> tuple[Judged, ...]:
    """The births of a step with their mechanisms; those that only follow from another one are left out."""
    found = [(birth, classify(step, birth)) for birth in step.births[:_LOOKED_AT]]
    causes = [(b, how) for b, how in found if b is step.birth or not b.follows or _is_a_trusted_mask(how)]
    # 1 / 0 of data gives an infinity that a mask is often meant to remove.
    causes.sort(key=lambda cause: cause[1].word in ("constant", "other"))
    return tuple(Judged(birth, how, depth) for depth, (birth, how) in enumerate(causes, 1))


def _is_a_trusted_mask(how: Mechanism) -> bool:
    """A mask that multiplies was trusted to remove what was born before it, and cannot: a mistake of its own."""
    return how.kind is Kind.ZERO_TIMES_INF and how.word == "mask"


def classify(step: FailedStep, birth: TracedBirth) -> Mechanism:
    """The one mechanism of a birth; `Kind.UNKNOWN` where no judge recognises it."""
    return next(
        (found for judge in _JUDGES if (found := judge(step, birth)) is not None), Mechanism(Kind.UNKNOWN)
    )
