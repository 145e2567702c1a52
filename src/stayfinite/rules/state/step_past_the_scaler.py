"""STA034: an optimizer that stepped on scaled gradients."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class StepPastTheScaler(Rule[FailedStep]):
    """The optimizer was stepped directly, past the GradScaler or once more after it.

    ## What it finds
    `optimizer.step()` after `scaler.scale(loss).backward()`, without `scaler.step(optimizer)` or `scaler.unscale_`;
    `optimizer.step()` behind `scaler.step(optimizer)`, on the same gradients; and `optimizer.step()` behind
    `scaler.unscale_(optimizer)`, where such a gradient was not finite.

    ## Why it is bad
    The gradients are thousands of times too large. SGD diverges at once; Adam hides it, because it divides by the
    size of the gradient, but its eps, clipping and weight decay no longer mean what they say, and no step is
    skipped on overflow. That scaled gradients overflow now and then is how a scaler finds its scale. A second step
    behind the scaler's applies what the scaler has just refused.

    ## Example
    `scaler.scale(loss).backward(); optimizer.step(); scaler.update()`

    ## The fix
    `scaler.step(optimizer)`: it unscales, checks for overflow, and steps.

    ## The popular fix that does not work
    Dividing the learning rate by the scale: the scale changes while training.

    ## References
    Lightning-AI/pytorch-lightning#9599
    """

    code = "STA034"
    name = "step-past-the-scaler"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.run.scalers:
            place = subject.run.optimizers[0].stepped if subject.run.optimizers else scaler.created
            if scaler.stepped_again:
                yield self.finding(
                    f"{scaler.stepped_again} times optimizer.step() followed scaler.step(optimizer): every update is "
                    "made twice, and one that the scaler refuses is made all the same",
                    fix="remove optimizer.step(): scaler.step(optimizer) is the step",
                    evidence={"steps": scaler.stepped_again, "refused": scaler.skipped},
                    depth=Depth.UPSTREAM,
                    place=place,
                )
            if scaler.unchecked and not subject.run.complete and subject.trigger == "gradient":
                yield self.finding(
                    "optimizer.step() follows scaler.unscale_(optimizer) without scaler.step(optimizer): gradients "
                    "that overflow at this scale, which the scaler would have refused, are applied",
                    fix="call scaler.step(optimizer) instead of optimizer.step(): it leaves such a step out, and "
                    "scaler.update() then lowers the scale",
                    evidence={"steps": scaler.unchecked, "scale": scaler.scale},
                    depth=Depth.UPSTREAM,
                    place=place,
                )
            if not scaler.bypassed or scaler.scale <= 1.0:
                continue
            yield self.finding(
                f"{scaler.bypassed} optimizer steps were made on gradients still multiplied by the loss scale "
                f"({scaler.scale:g} now)",
                fix="call scaler.step(optimizer) instead of optimizer.step()",
                evidence={"steps": scaler.bypassed, "scale": scaler.scale},
                depth=Depth.UPSTREAM,
                place=place,
            )
