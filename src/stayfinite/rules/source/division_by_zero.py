"""SRC040: a division by a value that can be exactly zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, just_made, level, origin, unprotected

_TOLD_ELSEWHERE = frozenset({"count", "range", "deviation", "norm", "shifted"})
_MAKERS = (
    "sigmoid", "softmax", "relu", "relu6", "tensor", "clamp", "clamp_min", "one_hot", "hardsigmoid", "tanh",
)  # fmt: skip


class DivisionByPossibleZero(Rule[SourceFile]):
    """A divisor can be exactly zero, as far as the source shows.

    ## What it finds
    A division (or reciprocal) by a sigmoid, softmax, ReLU, a clamp at 0, one minus a saturating value, or
    by numbers in the source that include 0. Counts, ranges, deviations and norms have rules of their own.

    ## Why it is bad
    x/0 is infinite, 0/0 is NaN, and the gradient of the quotient is worse than the quotient.

    ## Example
    `0.5 * (y - mu) ** 2 / torch.sigmoid(s)`

    ## The fix
    Give the divisor a floor that means something (`torch.sigmoid(s) + 0.01`, `clamp_min`), or compute in
    log space.

    ## The popular fix that does not work
    `nan_to_num` on the quotient: the gradient is NaN all the same.

    ## References
    motokimura/PyTorch_Gaussian_YOLOv3#23, pytorch/pytorch#101967
    """

    code = "SRC040"
    name = "division-by-possible-zero"
    cause = "EMPTY_REDUCTION"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unprotected(subject, "div", "reciprocal"):
            divisor = operation.operands[-1 if operation.name == "div" else 0]
            if (
                not divisor.known
                or divisor.kind == "number"
                or just_made(divisor)
                or not divisor.reaches(0.0)
            ):
                continue
            if divisor.traits & _TOLD_ELSEWHERE or divisor.made is None or divisor.low < 0:
                continue
            summed = divisor.made.name in ("sum", "mean") and divisor.made_by("relu", "one_hot", depth=2)
            if divisor.made.name not in _MAKERS and not divisor.has("complement") and not summed:
                continue
            if operation.name == "div" and operation.operands[0].made is divisor.made:
                continue  # x / x
            yield self.finding(
                f"division by {origin(divisor)}",
                fix="floor the divisor (clamp_min, or + a constant of the quantity's own "
                "size), or compute in log space",
                evidence=evidence(operation, divisor),
                cause="DIST_PARAM" if divisor.made.name in ("sigmoid", "relu") else self.cause,
                severity=level(operation, self.severity),
                **at(subject, operation),
            )
