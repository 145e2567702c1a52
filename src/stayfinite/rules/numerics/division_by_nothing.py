"""NUM006: a division by a count, a sum or another quantity that is zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.rules.evidence import counted, judged, source_of, span, told

_WORDS = {
    "count": "a count of nothing",
    "sum": "a sum over nothing (or over zeros)",
    "other": "a computed value",
    "energy": "an energy",
    "empty sum": "a sum of exponentials that has no term (none of them has rounded to 0)",
}
_FIXES = {
    "count": "divide by count.clamp(min=1) and filter what has nothing to count",
    "sum": "divide by count.clamp(min=1) and filter what has nothing to count",
    "empty sum": "give every row at least one entry (a self loop of the node, a key that no mask hides), or divide "
    "rows that have none by 1",
}
_OTHERWISE = "find out why the divisor is zero; where zero is legal, clamp it away from 0"


class DivisionByNothing(Rule[FailedStep]):
    """Something was divided by a count or a sum that is zero, because nothing was there to count.

    ## What it finds
    Divisions, reciprocals and negative powers by zero where the divisor is the number (or weight) of selected
    elements: the sum of a mask, the degree of a node, the size of a class, the area of a union. Also a logarithm
    of a frequency that is zero because a class is absent.

    ## Why it is bad
    0/0 is NaN, x/0 is infinite. It waits for the one batch in which a mask selects nothing, often after hours.

    ## Example
    `loss = (x * mask).sum() / mask.sum()` for a sample whose answer was cut off by the tokenizer

    ## The fix
    `/ mask.sum().clamp(min=1)`: the numerator is 0 anyway. Filter empty samples, smooth class counts by one.

    ## The popular fix that does not work
    Skipping steps whose loss is NaN without looking: what made the divisor zero (an empty sample, a setting that
    is 0) stays, and every average of losses that saw such a step is NaN too.

    ## References
    microsoft/LMOps#38, perslev/MultiPlanarUNet#24
    """

    code = "NUM006"
    name = "division-by-nothing"
    cause = "EMPTY_REDUCTION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.DIVISION_BY_ZERO):
            how, divisor = born.how, born.how.operand
            what = _what(how.word, divisor)
            yield self.finding(
                f"division by {counted(how.count, 'zero')}: the divisor is {what} ({span(divisor)})",
                fix=_FIXES.get(how.word, _OTHERWISE),
                **told(born, "zero_divisors", "zero_over_zero", divisor_is=how.word),
            )
        for born in judged(subject, Kind.FREQUENCY_ZERO):
            total = born.how.operand.numel if born.how.operand is not None else 0
            yield self.finding(
                f"the logarithm of a frequency that is zero: {counted(born.how.count, 'class')} of {total} "
                f"never occurs",
                fix="smooth the counts (add 1 to each) or leave absent classes out",
                **told(born),
            )


def _what(word: str, divisor: Operand | None) -> str:
    """The kind of number, and where it was made; a number of the script itself was made nowhere."""
    if word == "constant":
        return "a number that the script sets"
    return f"{_WORDS.get(word, f'a {word}')}, {source_of(divisor)}"
