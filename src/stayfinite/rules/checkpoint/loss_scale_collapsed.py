"""CKP013: a loss scale of zero or below one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint


class LossScaleCollapsed(Rule[Checkpoint]):
    """The gradient scaler's scale is 0 (or not finite), or below 1, after halving again and again.

    ## What it finds
    A stored scale that is 0, negative, NaN or Inf (error), or below 1 (warning).

    ## Why it is bad
    The scale halves each time a gradient overflows and has no floor: about 166 bad steps take it to 0. The next
    clean batch then computes 0 * inf = NaN, which the scaler does not see. Below 1 it no longer protects small
    gradients, which was its purpose, and tells that the forward pass itself overflows.

    ## Example
    `scaler.pt` with `{"scale": 3.8e-06, ...}` after thousands of skipped steps.

    ## The fix
    Find the overflow in the forward pass (it is not the gradients), then resume with a fresh scaler, or use bfloat16
    and no scaler at all.

    ## The popular fix that does not work
    A smaller `min_loss_scale`, or a fixed scale of 1: the forward pass still overflows.

    ## References
    microsoft/DeepSpeed#931, torch.amp.GradScaler
    """

    code = "CKP013"
    name = "saved-loss-scale-collapsed"
    cause = "LOSS_SCALE_COLLAPSE"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for scaler in subject.scalers:
            dead = not math.isfinite(scaler.scale) or scaler.scale <= 0
            if dead or scaler.scale < 1:
                yield self.finding(
                    f"{scaler.name}: the loss scale is {scaler.scale:g}"
                    + (
                        "; the next clean batch becomes NaN"
                        if dead
                        else ", below 1: the forward pass overflows"
                    ),
                    fix="find the overflow in the forward pass, then resume with a fresh scaler (or in bfloat16)",
                    evidence={"scale": scaler.scale, "growth_tracker": scaler.growth_tracker},
                    file=scaler.file,
                    severity=Severity.ERROR if dead else Severity.WARNING,
                )
