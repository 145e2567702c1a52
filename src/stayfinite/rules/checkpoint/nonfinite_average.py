"""CKP004: an averaged weight that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind
from stayfinite.rules.checkpoint.nonfinite import report


class NonfiniteAverage(Rule[Checkpoint]):
    """The averaged copy of the weights (EMA, SWA) is NaN or infinite, and no later step can heal it.

    ## What it finds
    Tensors with NaN or Inf in the averaged copy of the model.

    ## Why it is bad
    The average is usually what is evaluated and published. One bad update stays in it for ever: 0.999 * NaN is NaN,
    however healthy the weights are again.

    ## Example
        ema.update(model)     # called after a step that was bad, or that the scaler skipped

    ## The fix
    Take the average from a healthy checkpoint, or start it again from the present weights when those are finite.
    Update it only after a step that was applied.

    ## The popular fix that does not work
    Lowering the decay: any factor times NaN is NaN.

    ## References
    torch.optim.swa_utils.AveragedModel; Polyak and Juditsky 1992
    """

    code = "CKP004"
    name = "nonfinite-average"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        fix = "take the average from a healthy checkpoint, or start it again from the weights if those are finite"
        yield from report(self, subject, "the averaged weight", fix, Kind.AVERAGE)
