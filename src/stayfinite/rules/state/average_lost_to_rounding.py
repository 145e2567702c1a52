"""STA041: an average in half precision that its own updates do not move."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_WRITES = 20
_STILL, _MOVED = 0.6, 0.6
_AWAY, _STUCK = 0.3, 0.2  # of the values, and of those that are away


class AverageLostToRounding(Rule[FailedStep]):
    """A copy of the model in half precision is updated again and again, and stays what it was.

    ## What it finds
    A copy of a module (an EMA, a momentum teacher) in bfloat16 or float16 that was written to at least 20 times, most
    of whose values are still bit for bit those it began with, while those of the trained model have moved; or many of
    those that the model has left by half of their size and more (values near 0 move all the same).

    ## Why it is bad
    A step of an average is (1 - decay) of a difference. bfloat16 keeps 8 bits: what is less than a 256th of the value
    is rounded away, every time. The average is the initialisation, and it is what gets evaluated and published.

    ## Example
    `ema = copy.deepcopy(model).to(torch.bfloat16)`, then `e.lerp_(p, 0.0005)` after every step

    ## The fix
    Keep averages in float32 (`.float()`); convert a copy of them for inference.

    ## The popular fix that does not work
    More steps, or a decay nearer to 1: the steps of the average become smaller still.

    ## References
    IEEE 754: half a unit in the last place of float16 is 2**-11 of a value, of bfloat16 2**-8
    """

    code = "STA041"
    name = "average-lost-to-rounding"
    cause = "BF16_PRECISION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if not subject.run.complete:
            return
        for average in subject.run.averages:
            stuck = average.away >= _AWAY * average.values and average.stuck >= _STUCK * average.away
            if average.writes < _WRITES or not (stuck or average.still >= _STILL * average.values):
                continue
            if average.source_moved < _MOVED * average.values:
                continue  # the model itself stands still
            yield self.finding(
                f"a copy of the model in {average.dtype} was written to {average.writes} times, and "
                f"{average.still / average.values:.0%} of its values are what they were when it was made"
                + (
                    f"; of those far from the model's by now, {average.stuck / average.away:.0%}"
                    if stuck
                    else ""
                ),
                fix="keep the average in float32: copy.deepcopy(model).float()",
                evidence={
                    "dtype": average.dtype,
                    "writes": average.writes,
                    "unchanged": average.still,
                    "looked_at": average.values,
                    "away": average.away,
                    "stuck": average.stuck,
                },
                place=average.made,
            )
