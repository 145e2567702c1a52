"""NUM010: an infinite mask that was multiplied, has the wrong sign, or is part of the loss."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Judged, Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told

_FILL = "fill instead: scores.masked_fill(~allow, float('-inf')), allow a boolean mask with one True a row"
_LEAVE_OUT = (
    "check that no label is masked, and sum over the positions that are not (label smoothing, means and "
    "divergences take all of them)"
)


_DIFFERENCE = (
    "both logarithms are -inf where the mask is: leave those positions out of the difference, "
    "(log_p - log_q).masked_fill(~allow, 0.0); their weight is 0"
)
_NO_WAY = (
    "look at what should have taken the place of that infinity: a band or a mask that leaves no way through, a minimum "
    "over nothing. Widen it, or leave such samples out; a large number instead of the infinity would be learnt from"
)


class MaskOfInfinity(Rule[FailedStep]):
    """A mask of infinities was multiplied by zero, subtracted from itself, has the wrong sign, or reached the loss.

    ## What it finds
    `mask * -inf`, where the zeros of the mask become NaN; -inf minus -inf when masks are combined; +inf that
    was written into scores before a softmax; and -inf that goes through a log-softmax into the loss, because a
    label is masked, or because label smoothing or a mean sums over the masked positions. An infinity that the script
    writes as "no way yet" (a border of an alignment, a running minimum) and that is the loss in the end.

    ## Why it is bad
    0 * inf and inf - inf are NaN, and the softmax of a row with +inf is inf/inf. All positions are hit, the valid
    ones first. A masked class has log-probability -inf: whatever weight the loss gives it, the loss is infinite.

    ## Example
    `scores + (1 - mask) * float("-inf")`

    ## The fix
    Fill instead of multiplying: `scores.masked_fill(mask == 0, float("-inf"))`, with at least one valid key a row.
    Leave masked positions out of the loss, and check that no label is masked. Give an alignment a band that is at least
    as wide as the lengths differ.

    ## The popular fix that does not work
    `nan_to_num` of what comes out: after a softmax masked and valid positions then get the same weight 0, and in a
    loss nobody is told any more that something is masked which should not be.

    ## References
    pytorch/pytorch#41508, NVIDIA-NeMo/Automodel#2658
    """

    code = "NUM010"
    name = "mask-of-infinity"
    cause = "MASK_VALUE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.MASK_OF_INFINITY):
            yield self.finding(born.how.word, fix=_fix(born), **told(born, op=born.birth.op))


def _fix(born: Judged) -> str:
    if born.how.more.get("as_the_loss"):
        return _NO_WAY
    if born.how.more.get("in_loss"):
        return _LEAVE_OUT
    return _DIFFERENCE if born.how.more.get("of_logarithms") else _FILL
