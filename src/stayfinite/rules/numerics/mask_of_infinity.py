"""NUM010: an infinite mask that was multiplied, or has the wrong sign."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told


class MaskOfInfinity(Rule[FailedStep]):
    """An attention mask of infinities was multiplied by zero, subtracted from itself, or has the wrong sign.

    ## What it finds
    `mask * -inf`, where the zeros of the mask become NaN; -inf minus -inf when masks are combined; and +inf that
    was written into scores before a softmax.

    ## Why it is bad
    0 * inf and inf - inf are NaN, and the softmax of a row with +inf is inf/inf. All positions are hit, the valid
    ones first.

    ## Example
    `scores + (1 - mask) * float("-inf")`

    ## The fix
    Fill instead of multiplying: `scores.masked_fill(mask == 0, float("-inf"))`, with at least one valid key a row.

    ## The popular fix that does not work
    `nan_to_num` after the softmax: masked and valid positions then get the same weight 0.

    ## References
    pytorch/pytorch#41508, NVIDIA-NeMo/Automodel#2658
    """

    code = "NUM010"
    name = "mask-of-infinity"
    cause = "MASK_VALUE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.MASK_OF_INFINITY):
            yield self.finding(
                born.how.word,
                fix="fill instead: scores.masked_fill(~allow, float('-inf')), allow a boolean mask with one True a row",
                **told(born, op=born.birth.op),
            )
