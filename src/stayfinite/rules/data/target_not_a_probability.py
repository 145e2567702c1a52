"""DAT015: targets outside of 0..1 for a binary cross entropy."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep, Failure
from stayfinite.findings.subjects.traced_birth import Operand
from stayfinite.rules.evidence import only_an_error, tensors, told_by_error

_REFUSED = "all elements of target should be between 0 and 1"
_BYTES = (2.0, 255.0)
_OF_BYTES = (
    "divide bytes by 255 before the model sees them (x.float() / 255), where an image is its own target; "
    "(mask > 127).float() for masks"
)
_INTO_RANGE = "bring the targets into 0..1 where they are read; cross_entropy is for class numbers"
_ROUNDING = 1e-3  # smoothed and mixed targets may end a little outside


class TargetNotAProbability(Rule[FailedStep]):
    """Targets of a binary cross entropy lie outside of 0..1.

    ## What it finds
    Targets below 0 or above 1 given to `BCEWithLogitsLoss`: masks of 0 and 255, labels of -1 and 1, class numbers. And
    the error that `binary_cross_entropy` raises for them: pixels as bytes, where an image is its own target.

    ## Why it is bad
    `binary_cross_entropy` refuses such targets, the form with logits does not. The loss then has no lower bound: it
    goes to minus infinity, looks better with every step, and the model learns to put out ever larger logits.

    ## Example
    `BCEWithLogitsLoss()(net(image), torch.from_numpy(png_mask).float())` with a mask of 0 and 255

    ## The fix
    Make the targets what they mean: `(mask > 127).float()`, `(labels + 1) / 2`, or cross_entropy for class numbers.

    ## The popular fix that does not work
    `abs()` of the loss, or another rate: the minimum is still at infinity. Clamping them to 0..1: a byte of 3 is then
    as white as one of 255, and the error, which was right, is gone.

    ## References
    milesial/Pytorch-UNet#78
    """

    code = "DAT015"
    name = "target-not-a-probability"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        failure = only_an_error(subject)
        if failure is not None and _REFUSED in failure.text:
            yield self._refused(
                subject.birth.operand("target") if subject.birth is not None else None, failure
            )
            return
        for target in subject.run.targets:
            if not (target.low < -_ROUNDING or target.high > 1 + _ROUNDING):  # NaN is beyond nothing
                continue
            yield self.finding(
                f"targets of binary_cross_entropy_with_logits run from {target.low:g} to {target.high:g}: beyond 0..1 "
                "the loss has no lower bound",
                fix="bring the targets into 0..1, e.g. (mask > 127).float() for masks of 0 and 255",
                evidence={"min": target.low, "max": target.high, "calls": target.calls},
                place=target.place,
            )

    def _refused(self, given: Operand | None, failure: Failure) -> Finding:
        """The error of `binary_cross_entropy`, with what it was given where that was traced."""
        low = given.summary.min if given is not None else None
        high = given.summary.max if given is not None else None
        told = told_by_error(failure)
        if low is None or high is None:
            return self.finding(
                "targets of binary_cross_entropy lie outside of 0..1", fix=_INTO_RANGE, **told
            )
        told["evidence"] = {**told["evidence"], "inputs": tensors(given)}
        are_bytes = low >= 0 and _BYTES[0] < high <= _BYTES[1]
        return self.finding(
            f"targets of binary_cross_entropy run from {low:g} to {high:g}: they must lie in 0..1",
            fix=_OF_BYTES if are_bytes else _INTO_RANGE,
            **told,
        )
