"""SRC045: a mask multiplied by infinity."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence


class MaskTimesInfinity(Rule[SourceFile]):
    """A mask is multiplied by infinity, and zero times infinity is NaN.

    ## What it finds
    a product with `float("-inf")`, `-torch.inf` or `math.inf`, such as `(1.0 - mask) * float("-inf")`.

    ## Why it is bad
    Where the mask is 0, the product is 0 times infinity: NaN, not 0. Every position that should be kept
    becomes NaN.

    ## Example
    `scores = scores + (1.0 - mask) * float("-inf")`

    ## The fix
    `scores.masked_fill(mask == 0, float("-inf"))`, or a large finite number: `(1.0 - mask) *
    torch.finfo(scores.dtype).min`.

    ## The popular fix that does not work
    `nan_to_num` on the product: the kept positions are NaN already.

    ## References
    pytorch/pytorch#101967, ai2cm/ace#949
    """

    code = "SRC045"
    name = "mask-times-infinity"
    cause = "INF_TIMES_ZERO"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("times_infinity"):
            if all(operand.kind == "number" for operand in operation.operands) or "ones" in operation.text:
                continue
            if any(operand.known and not operand.reaches(0.0) for operand in operation.operands):
                continue
            yield self.finding(
                f"`{operation.text}`: where the other factor is 0, the product is NaN",
                fix="masked_fill(mask == 0, float('-inf')), or a finite number: torch.finfo(dtype).min",
                evidence=evidence(operation),
                **at(subject, operation),
            )
