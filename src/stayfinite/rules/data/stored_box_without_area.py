"""DAT029: stored boxes without area."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet
from stayfinite.rules.evidence import counted


class StoredBoxWithoutArea(Rule[DataSet]):
    """Stored boxes whose width or height is zero or negative.

    ## What it finds
    Boxes without area, in the layout (x1 y1 x2 y2, or x y w h) that most boxes of the array have. Boxes of zeros that
    pad samples to one number of boxes are not meant.

    ## Why it is bad
    Box regression takes the logarithm of the size, IoU divides by areas: one such box makes the loss NaN.

    ## Example
    An annotation [53, 89, 53, 226]

    ## The fix
    Drop the named boxes where annotations are read.

    ## The popular fix that does not work
    A lower learning rate: the logarithm of 0 does not depend on it.

    ## References
    pytorch/vision#2240; DAT014 for boxes of a failing step
    """

    code = "DAT029"
    name = "stored-box-without-area"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for boxes in subject.boxes:
            yield self.finding(
                f"{boxes.array}: boxes without area in {counted(boxes.bad.count, 'sample')} ({boxes.total} boxes, "
                f"read as {boxes.layout}): {subject.named(boxes.bad)}",
                fix="drop boxes whose width or height is not positive where annotations are read",
                evidence={
                    "array": boxes.array,
                    "layout": boxes.layout,
                    "samples": boxes.bad.count,
                    "first_samples": [subject.name_of(sample) for sample in boxes.bad.first],
                },
                file=subject.path,
            )
