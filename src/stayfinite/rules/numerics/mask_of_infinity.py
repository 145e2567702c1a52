"""NUM010: an infinite mask that was multiplied, has the wrong sign, or is part of the loss."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told

_FILL = "fill instead: scores.masked_fill(~allow, float('-inf')), allow a boolean mask with one True a row"
_LEAVE_OUT = (
    "check that no label is masked, and sum over the positions that are not (label smoothing, means and "
    "divergences take all of them)"
)


class MaskOfInfinity(Rule[FailedStep]):
    """A mask of infinities was multiplied by zero, subtracted from itself, has the wrong sign, or reached the loss.

    ## What it finds
    `mask * -inf`, where the zeros of the mask become NaN; -inf minus -inf when masks are combined; +inf that
    was written into scores before a softmax; and -inf that goes through a log-softmax into the loss, because a
    label is masked, or because label smoothing or a mean sums over the masked positions.

    ## Why it is bad
    0 * inf and inf - inf are NaN, and the softmax of a row with +inf is inf/inf. All positions are hit, the valid
    ones first. A masked class has log-probability -inf: whatever weight the loss gives it, the loss is infinite.

    ## Example
    `scores + (1 - mask) * float("-inf")`

    ## The fix
    Fill instead of multiplying: `scores.masked_fill(mask == 0, float("-inf"))`, with at least one valid key a row.
    Leave masked positions out of the loss, and check that no label is masked.

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
                fix=_LEAVE_OUT if born.how.more.get("in_loss") else _FILL,
                **told(born, op=born.birth.op),
            )
