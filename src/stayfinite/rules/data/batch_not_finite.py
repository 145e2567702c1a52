"""DAT001: the batch itself holds NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.refused_step import RefusedStep


class BatchNotFinite(Rule[RefusedStep]):
    """The batch of the refused step holds NaN or Inf.

    ## What it finds
    Non-finite values in the tensors of the batch that was given to the step.

    ## Why it is bad
    Whatever the model does with them, the loss or a gradient is NaN. It is not the model's fault.

    ## Example
    A normalisation that divided a constant image by its range of zero; a missing value in a table read as NaN.

    ## The fix
    Find the sample (the evidence gives its index), repair the source or drop it in the data set, and check there.

    ## The popular fix that does not work
    Lowering the learning rate, or `nan_to_num` in the model: the sample comes back every epoch.

    ## References
    keras-team/keras#6921, albumentations-team/albumentations#1742
    """

    code = "DAT001"
    name = "batch-not-finite"
    cause = "DATA_NONFINITE"
    severity = Severity.ERROR

    def check(self, subject: RefusedStep) -> Iterator[Finding]:
        for tensor in subject.batch:
            yield self.finding(
                f"{tensor.name} holds {tensor.nan} NaN and {tensor.inf} Inf",
                fix="repair or drop the sample at its source, and check samples in the data set",
                evidence=tensor.to_json(),
            )
