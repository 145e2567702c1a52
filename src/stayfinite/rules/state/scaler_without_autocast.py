"""STA006: a GradScaler, but nothing runs in float16."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class ScalerWithoutAutocast(Rule[Setup]):
    """A GradScaler is in use, but no module of the first forward pass ran under float16 autocast.

    ## What it finds
    An enabled scaler in a run whose first forward pass used no autocast, or autocast in bfloat16, with no float16
    parameters either.

    ## Why it is bad
    Scaling guards float16 gradients against underflow; float32 and bfloat16 gradients do not underflow. Here it
    can only do harm: scaled values may overflow and steps are skipped for nothing.

    ## Example
    `GradScaler()` together with `torch.autocast("cuda", dtype=torch.bfloat16)`

    ## The fix
    Remove the scaler, or use `torch.autocast(device, dtype=torch.float16)` around the forward pass.

    ## The popular fix that does not work
    Lowering the initial scale: it keeps a mechanism that has nothing to do here.

    ## References
    The torch.amp examples.
    """

    code = "STA006"
    name = "scaler-without-autocast"
    cause = "SCALER_MISUSE"
    severity = Severity.WARNING

    def check(self, subject: Setup) -> Iterator[Finding]:
        half = any(
            "float16" in group.dtypes for optimizer in subject.optimizers for group in optimizer.groups
        )
        if subject.scaler and subject.forward_seen and subject.autocast != "float16" and not half:
            seen = f"autocast ran in {subject.autocast}" if subject.autocast else "autocast was not on"
            yield self.finding(
                f"a GradScaler is in use although the first forward pass needs none: {seen}",
                fix="remove the scaler, or run the forward pass under float16 autocast",
                evidence={"autocast": subject.autocast},
            )
