"""STA007: float16 autocast without a GradScaler."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class Float16WithoutScaler(Rule[Setup]):
    """The first forward pass ran under float16 autocast, and there is no GradScaler.

    ## What it finds
    float16 autocast seen in the first forward pass while the guard was given no enabled scaler.

    ## Why it is bad
    float16 gradients below 6e-8 are zero and one overflow reaches the weights in the same step: nothing skips it
    but this guard. Often the configuration says bfloat16 while autocast runs in its default, float16.

    ## Example
    `torch.autocast("cuda")` switched on by hand in a script whose launcher was set to `mixed_precision: no`

    ## The fix
    Say `dtype=torch.bfloat16` explicitly, or add a GradScaler and pass it to the guard.

    ## The popular fix that does not work
    `nan_to_num` on the predictions: an all-NaN model then shows a finite loss with a gradient of zero.

    ## References
    The torch.amp examples.
    """

    code = "STA007"
    name = "float16-without-scaler"
    cause = "SCALER_MISUSE"
    severity = Severity.WARNING

    def check(self, subject: Setup) -> Iterator[Finding]:
        if subject.autocast == "float16" and not subject.scaler:
            yield self.finding(
                "the forward pass runs in float16 autocast without a GradScaler: small gradients become zero and an "
                "overflow goes straight to the weights",
                fix="use dtype=torch.bfloat16 in autocast, or add a GradScaler and pass it as Guard(scaler=...)",
                evidence={"autocast": subject.autocast},
            )
