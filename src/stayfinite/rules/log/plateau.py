"""LOG010: a loss that never moved from where it started."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median, pstdev

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role, Series
from stayfinite.rules.log.story import main_loss, place, plays_against_itself

_FEWEST, _FEWEST_STEPS = 100, 1000
_STILL = 0.003
_CALM = 0.05


class Plateau(Rule[Log]):
    """From the first record to the last the loss stayed where it started.

    ## What it finds
    A log that begins at the beginning of a run, with at least 100 losses over 1000 steps whose level at the end is
    within 0.3 per cent of the level at the start and whose noise is small. Converged runs, resumed runs, and
    adversarial or reinforcement losses are not meant and not reported.

    ## Why it is bad
    The model does not learn: rate 0, frozen or detached parameters, updates lost to half precision, labels that do not
    belong to the inputs, an output that is constant.

    ## Example
    A loss of 2.303 (ln 10) for ten classes over 5000 steps

    ## The fix
    Look at the gradient norm and the learning rate in the log; train on one batch until it is learnt.

    ## The popular fix that does not work
    More epochs.

    ## References
    rules STA and RUN of this program (rate 0, updates lost to rounding)
    """

    code = "LOG010"
    name = "loss-never-moved"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        loss = main_loss(subject)
        if (
            loss is None
            or loss.bad
            or loss.count < _FEWEST
            or plays_against_itself(subject)
            or not loss.first
        ):
            return
        steps = (subject.last_step or 0) - (subject.first_step or 0) if subject.counted else loss.count
        if steps < _FEWEST_STEPS - 1:
            return  # many runs need a few hundred steps before anything moves
        if subject.counted and (subject.first_step or 0) > 0.05 * (subject.last_step or 0) + 1:
            return  # it begins in the middle: the run may have converged long before
        start, end = _levels(loss)
        noise = pstdev([bucket.mean for bucket in loss.buckets if bucket.finite])
        size = max(abs(start), 1e-12)
        if (
            abs(end - start) > _STILL * size
            or noise > _CALM * size
            or abs(loss.head[0].value - start) > 0.1 * size
        ):
            return
        rates = list(subject.of_role(Role.RATE))
        zero = bool(rates) and all(series.maximum == 0 for series in rates)
        chance = _chance(end)
        why = (
            "; the learning rate is 0 in every record"
            if zero
            else f"; that is chance level for {chance} classes"
            if chance
            else ""
        )
        yield self.finding(
            f"{loss.name} was {start:.4g} at the start and is {end:.4g} after {loss.count} values{why}",
            fix="check learning rate and gradient norm, and train on one batch until it is learnt",
            evidence={"series": loss.name, "start": start, "end": end, "noise": noise, "values": loss.count},
            **place(subject, loss.first),
        )


def _levels(loss: Series) -> tuple[float, float]:
    known = [bucket.mean for bucket in loss.buckets if bucket.finite]
    part = max(1, len(known) // 10)
    return median(known[:part]), median(known[-part * 3 :])


def _chance(level: float) -> int | None:
    """The number of classes that guessing gives this loss for, where it is one people use."""
    for classes in (2, 3, 4, 5, 10, 20, 50, 100, 200, 1000):
        if abs(level - math.log(classes)) < 0.003 * math.log(classes):
            return classes
    return None
