"""SRC032: two additive masks of the dtype's most negative number added together."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence


class MaskValuesSummed(Rule[SourceFile]):
    """Additive masks that hold the dtype's most negative number are added together and overflow to minus infinity.

    ## What it finds
    The sum of two values that hold `torch.finfo(dtype).min` (or another number near the limit).

    ## Why it is bad
    finfo.min + finfo.min is minus infinity. A row in which every position is masked twice is all minus
    infinity, and its softmax is NaN.

    ## Example
    `mask = causal + key_padding`, both with `torch.finfo(dtype).min`

    ## The fix
    Combine booleans first (`allowed = causal & valid`), then fill once:
    `torch.zeros(...).masked_fill(~allowed, finfo.min)`.

    ## The popular fix that does not work
    minus infinity everywhere: a fully masked row is NaN at once.

    ## References
    NVIDIA-NeMo/Automodel#2658
    """

    code = "SRC032"
    name = "mask-values-summed"
    cause = "MASK_VALUE"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("add"):
            if len(operation.operands) < 2 or not all(
                value.has("most_negative") for value in operation.operands[:2]
            ):
                continue
            yield self.finding(
                "two masks that hold the most negative number are added: where both mask, "
                "the sum is minus infinity",
                fix="combine the boolean masks first (&), then fill once with finfo.min",
                evidence=evidence(operation),
                **at(subject, operation),
            )
