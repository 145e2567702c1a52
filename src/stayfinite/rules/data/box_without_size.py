"""DAT014: a box or interval whose size is zero or negative."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, span, told


class BoxWithoutSize(Rule[FailedStep]):
    """The size of a target box or interval (end minus start) is zero or negative.

    ## What it finds
    A logarithm, root or division of a difference of two columns of the data (x2 - x1) that is not positive, where
    nothing is learnt through the difference: it belongs to the labels.

    ## Why it is bad
    Box regression takes log(w / anchor_w), IoU divides by areas. One annotation with x2 <= x1 makes the loss NaN.

    ## Example
    `torch.log((gt[:, 2] - gt[:, 0]) / anchor_w)` with a box [53, 89, 7, 226], which is x, y, w, h

    ## The fix
    Filter boxes with positive width and height when the data set is read, and make sure of the format
    (x1, y1, x2, y2 or x, y, w, h).

    ## The popular fix that does not work
    Clipping gradients or a lower rate: the logarithm of a negative width is NaN at every rate.

    ## References
    pytorch/vision#2240, pytorch/vision#1128
    """

    code = "DAT014"
    name = "box-without-size"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.BOX_WITHOUT_SIZE):
            size = born.how.operand
            zeros, negatives = (size.summary.zeros, size.negatives) if size is not None else (0, 0)
            yield self.finding(
                f"{born.birth.op} of a size that is not positive: {counted(negatives, 'negative value')} and "
                f"{counted(zeros, 'zero')} in a difference of two columns ({span(size)})",
                fix="keep only boxes with x2 > x1 and y2 > y1 when the data is read, and check the box format",
                **told(born, samples=list(born.birth.birth.samples)),
            )
