"""CKP003: optimizer state that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind
from stayfinite.rules.checkpoint.nonfinite import bad_tensors, describe, evidence


class NonfiniteOptimizerState(Rule[Checkpoint]):
    """A moment of the optimizer is NaN or infinite, so the first step after loading poisons its weight.

    ## What it finds
    Momentum buffers, first and second moments and other optimizer tensors with NaN or Inf, and the weight each one
    belongs to where that can be told.

    ## Why it is bad
    A moment is an average: once NaN, always NaN. The weights can still look healthy when only they are checked, and
    break at the first step of the resumed run.

    ## Example
    A skip that multiplies the update by 0 keeps the weight and still writes 0 * NaN into `exp_avg`.

    ## The fix
    Restore weight and moments together from one healthy checkpoint (`stayfinite scan BAD --repair OUT --from GOOD`
    does this), or start the optimizer anew with a short warm-up.

    ## The popular fix that does not work
    Restoring the weights only: the old moments make them NaN again in the next step.

    ## References
    Kingma and Ba, Adam: the moments are exponential averages of all gradients seen
    """

    code = "CKP003"
    name = "nonfinite-optimizer-state"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for tensor in bad_tensors(subject, Kind.OPTIMIZER):
            known = tensor.parameter is not None and not tensor.parameter.isdigit()
            owner = f" of {tensor.parameter}" if known else ""
            yield self.finding(
                f"the optimizer state {tensor.name}{owner}: {describe(tensor)}",
                fix="restore weight and moments together from a healthy checkpoint, or start the optimizer anew",
                evidence=evidence(tensor),
                file=tensor.file,
            )
