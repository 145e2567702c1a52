"""STA031: the errors a GradScaler raises when it is used in the wrong order or on half parameters."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep

_MISUSES = {
    "Attempting to unscale FP16 gradients": (
        "the parameters are float16, so their gradients cannot be unscaled",
        "keep the model in float32 (no model.half()) and run its forward pass under autocast",
    ),
    "unscale_() has already been called": (
        "unscale_ was called twice before update",
        "call scaler.unscale_(optimizer) once per step, before clipping, and scaler.update() after step",
    ),
    "unscale_() is being called after step": (
        "unscale_ was called after step",
        "keep the order: backward, unscale_, clip, step, update",
    ),
    "step() has already been called since the last update": (
        "scaler.step was called twice without update",
        "call scaler.update() once after the steps of all optimizers",
    ),
    "did not use scaler.scale": ("the loss was never scaled", "call scaler.scale(loss).backward()"),
    "No inf checks were recorded": (
        "the optimizer has no gradients of the scaled loss",
        "call backward on scaler.scale(loss), and pass the optimizer that holds these parameters",
    ),
}


class ScalerOutOfOrder(Rule[FailedStep]):
    """A GradScaler raised an error, because it is used in the wrong order or on float16 parameters.

    ## What it finds
    The scaler's own errors: unscaling float16 gradients, unscale_ or step twice, step without scaled gradients.

    ## Why it is bad
    The scaler is meant for float32 parameters under float16 autocast, in one fixed order. Anything else either
    raises or trains with wrong gradients.

    ## Example
    `model.half()` together with `GradScaler`

    ## The fix
    float32 parameters; then backward of the scaled loss, `unscale_`, clip, `step`, `update`.

    ## The popular fix that does not work
    Catching the error, or unscaling by hand: the check for overflow is then never made.

    ## References
    torch.amp.GradScaler: unscale_ raises where it is called twice between updates
    """

    code = "STA031"
    name = "scaler-out-of-order"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        failure = subject.failure
        if failure is None:
            return
        for text, (message, fix) in _MISUSES.items():
            if text in failure.text:
                yield self.finding(message, fix=fix, evidence={"error": failure.text}, place=failure.place)
