"""DAT014: a box or interval whose size is zero or negative."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.rules.evidence import at, births_by_weight, by_autograd, counted, span, tensors

_SIZED = ("log", "log2", "sqrt", "div", "reciprocal", "pow", "atan")
_RAW = (
    "lift_fresh",
    "to_copy",
    "stack",
    "cat",
    "clone",
    "copy",
    "index",
    "rand",
    "randn",
    "randint",
    "full",
    "zeros",
)
_RESCALED = ("div", "mul", "add", "to_copy", "clone", "stack", "cat")


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
        for birth, weight in births_by_weight(subject):
            if birth.op not in _SIZED or by_autograd(birth):
                continue
            for size in birth.operands:
                if not (size.summary.zeros or size.negatives) or not _difference_of_columns(size):
                    continue
                yield self.finding(
                    f"{birth.op} of a size that is not positive: {counted(size.negatives, 'negative value')} and "
                    f"{counted(size.summary.zeros, 'zero')} in a difference of two columns ({span(size)})",
                    fix="keep only boxes with x2 > x1 and y2 > y1 when the data is read, and check the box format",
                    evidence={"inputs": tensors(size), "samples": list(birth.birth.samples)},
                    confidence=(0.93 if size.negatives else 0.92) * weight,
                    **at(birth),
                )
                break


def _difference_of_columns(operand: Operand) -> bool:
    """end - start of data: a difference that nothing was computed for before, and nothing is learnt through."""
    if operand.requires_grad or operand.origin in ("parameter", "buffer", "state"):
        return False
    difference = operand.made_by("sub", within=3)
    if difference is None or isinstance(difference.scalars.get("other"), (int, float)):
        return False
    before = [producer.name for producer in operand.producers if producer.distance > difference.distance]
    after = [producer.name for producer in operand.producers if producer.distance < difference.distance]
    return all(name in _RAW for name in before) and all(name in _RESCALED for name in after)
