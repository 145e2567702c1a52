"""DAT012: a constant sample divided by its own range or deviation."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, source_of, span, told

_OF_A_COLUMN = (
    "look at that column before it is rescaled: drop it if it is constant, or use a spread of 1 where it is 0 "
    "(sigma[sigma == 0] = 1); if one value is bad there (a NaN, a logarithm of a negative number), repair that one"
)


class ConstantSampleRescaled(Rule[FailedStep]):
    """A constant sample (or feature) was divided by its own range, maximum or standard deviation, which is zero.

    ## What it finds
    A division by zero whose divisor is `max - min`, a maximum, a standard deviation, an energy (a sum of squares), or
    a table of such statistics, of values that nothing is learnt through.

    ## Why it is bad
    0/0 makes the whole sample NaN. Black frames, silent clips and constant columns are ordinary data.

    ## Example
    `(img - img.min()) / (img.max() - img.min())` for an all-black image

    ## The fix
    Floor the divisor, `(img.max() - img.min()).clamp_min(1e-6)`: the numerator is 0, so the result is 0.

    ## The popular fix that does not work
    Dropping batches that hold NaN: it drops what good samples they hold, every epoch.

    ## References
    albumentations-team/albumentations#1742
    """

    code = "DAT012"
    name = "constant-sample-rescaled"
    cause = "PREPROC_ZERO_RANGE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.CONSTANT_COLUMN):
            yield self.finding(
                f"{counted(born.how.count, 'column')} of a table of {int(born.birth.fact('columns'))} NaN "
                "throughout, while the others have been rescaled: its spread was 0, or a bad value was in its mean",
                fix=_OF_A_COLUMN,
                **told(born, "bad_columns", "rescaled_columns", "columns"),
            )
        for born in judged(subject, Kind.CONSTANT_RESCALED):
            divisor = born.how.operand
            yield self.finding(
                f"division by {born.how.word} that is 0 for {counted(born.how.count, 'value')}: {source_of(divisor)} "
                f"({span(divisor)})",
                fix="floor the divisor with .clamp_min(1e-6): what is constant then becomes 0 instead of NaN",
                **told(born, "zero_divisors", "zero_over_zero", samples=list(born.birth.birth.samples)),
            )
