"""SRC009: values divided by their own range or deviation, which is zero for a constant sample."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, level, origin, unprotected


class DivisionByZeroRange(Rule[SourceFile]):
    """Values are divided by their own range or deviation, which is zero for a constant sample.

    ## What it finds
    A divisor `x.max() - x.min()`, `x.std()`, `x.var().sqrt()` without eps, clamp or test.

    ## Why it is bad
    A black frame, a silent clip, a column that never changes: 0/0 = NaN for the whole sample. Real data
    sets contain them.

    ## Example
    `(img - img.min()) / (img.max() - img.min())`

    ## The fix
    Floor the divisor: `.clamp_min(1e-6)` for a range, `x.std() + 1e-6` or `clamp_min` for a deviation; or
    pass a constant sample through as zeros.

    ## The popular fix that does not work
    Dropping batches whose loss is NaN: the sample comes back in every epoch, and what it was batched with
    is lost too.

    ## References
    albumentations-team/albumentations#1742
    """

    code = "SRC009"
    name = "division-by-zero-range"
    cause = "PREPROC_ZERO_RANGE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unprotected(subject, "div", operands=2):
            divisor = operation.operands[1]
            if not divisor.known or not divisor.reaches(0.0) or divisor.low < 0:
                continue
            if (
                not (divisor.has("range") or divisor.has("deviation"))
                or operation.operands[0].number is not None
            ):
                continue
            if operation.operands[0].has("deviation"):  # a ratio of two deviations standardises nothing
                continue
            yield self.finding(
                f"division by {origin(divisor)}",
                fix="floor the divisor: (x.max() - x.min()).clamp_min(1e-6), x.std() + 1e-6",
                evidence=evidence(operation, divisor),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )
