"""STA042: a loss that is not scaled, in gradients that the scaler unscales."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import depth_of_run_cause

_OFTEN = 3


class LossWithoutTheScale(Rule[FailedStep]):
    """A loss went backward without `scaler.scale`, and its gradients were divided by the scale all the same.

    ## What it finds
    In several steps, a backward pass of a loss that no scaler has scaled, into parameters of an optimizer that
    `scaler.step` steps; in a script that never asks for the scale, so it cannot have scaled the loss by itself.

    ## Why it is bad
    `scaler.step` divides all gradients by the scale. Those of the unscaled loss are thousands of times too small then:
    an auxiliary head, a penalty, a second task that is as good as switched off. Every number is finite.

    ## Example
    `scaler.scale(loss).backward(); aux_loss.backward(); scaler.step(optimizer)`

    ## The fix
    Scale every loss: `scaler.scale(aux_loss).backward()`, or `scaler.scale(loss + aux_loss).backward()`.

    ## The popular fix that does not work
    A larger weight for that loss: right for one scale, wrong after the next growth or back-off.

    ## References
    torch.amp, "Working with multiple models, losses, and optimizers"
    """

    code = "STA042"
    name = "loss-without-the-scale"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.run.scalers:
            if scaler.unscaled_losses >= _OFTEN and scaler.scale > 1.0:
                yield self.finding(
                    f"{scaler.unscaled_losses} updates were made of a loss that was not scaled, and its gradients were "
                    f"divided by the loss scale ({scaler.scale:g} now)",
                    fix="scale every loss before its backward pass: scaler.scale(loss).backward()",
                    evidence={"updates": scaler.unscaled_losses, "scale": scaler.scale},
                    depth=depth_of_run_cause(subject),
                    place=scaler.unscaled_loss,
                )
