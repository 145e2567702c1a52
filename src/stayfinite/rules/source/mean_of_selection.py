"""SRC044: a mean over elements picked by a mask that may pick none."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, level, taken_out, unguarded


class MeanOfEmptySelection(Rule[SourceFile]):
    """A mean is taken over the elements that a mask picks, and the mask may pick none.

    ## What it finds
    `x[mask].mean()` with a mask that is a comparison, without a test that something is picked, where a
    gradient may flow.

    ## Why it is bad
    The mean of nothing is NaN, and its gradient too. It happens to the one batch without a positive.

    ## Example
    `loss = error[target > 0].mean()`

    ## The fix
    `(error * keep).sum() / keep.sum().clamp(min=1)`, or `if keep.any():`.

    ## The popular fix that does not work
    `nan_to_num` on the mean: the gradient is NaN all the same.

    ## References
    microsoft/LMOps#38; stayfinite.ops.masked_mean
    """

    code = "SRC044"
    name = "mean-of-empty-selection"
    cause = "EMPTY_REDUCTION"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "mean"):
            value = operation.operands[0]
            if operation.selected or operation.no_grad:
                continue
            if not value.has("picked") or value.grad is False or taken_out(subject, operation):
                continue
            yield self.finding(
                f"`{operation.text}` is NaN when the mask picks nothing",
                fix="(x * keep).sum() / keep.sum().clamp(min=1), or test keep.any() first",
                evidence=evidence(operation),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )
