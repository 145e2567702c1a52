"""DAT015: targets outside of 0..1 for a binary cross entropy that does not check them."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_ROUNDING = 1e-3  # smoothed and mixed targets may end a little outside


class TargetNotAProbability(Rule[FailedStep]):
    """Targets of binary_cross_entropy_with_logits lie outside of 0..1.

    ## What it finds
    Targets below 0 or above 1 given to `BCEWithLogitsLoss`: masks of 0 and 255, labels of -1 and 1, class numbers.

    ## Why it is bad
    `binary_cross_entropy` refuses such targets, the form with logits does not. The loss then has no lower bound: it
    goes to minus infinity, looks better with every step, and the model learns to put out ever larger logits.

    ## Example
    `BCEWithLogitsLoss()(net(image), torch.from_numpy(png_mask).float())` with a mask of 0 and 255

    ## The fix
    Make the targets what they mean: `(mask > 127).float()`, `(labels + 1) / 2`, or cross_entropy for class numbers.

    ## The popular fix that does not work
    `abs()` of the loss, or another rate: the minimum is still at infinity.

    ## References
    milesial/Pytorch-UNet#78
    """

    code = "DAT015"
    name = "target-not-a-probability"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for target in subject.run.targets:
            if target.low >= -_ROUNDING and target.high <= 1 + _ROUNDING:
                continue
            yield self.finding(
                f"targets of binary_cross_entropy_with_logits run from {target.low:g} to {target.high:g}: beyond 0..1 "
                "the loss has no lower bound",
                fix="bring the targets into 0..1, e.g. (mask > 127).float() for masks of 0 and 255",
                evidence={"min": target.low, "max": target.high, "calls": target.calls},
                place=target.place,
            )
