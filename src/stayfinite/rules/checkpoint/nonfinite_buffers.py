"""CKP002: a buffer that is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind
from stayfinite.rules.checkpoint.nonfinite import report


class NonfiniteBuffers(Rule[Checkpoint]):
    """A buffer, such as a running mean of BatchNorm, is NaN or infinite although the weights may be healthy.

    ## What it finds
    Buffers with NaN or Inf. Additive masks (zeros and -inf) are left alone.

    ## Why it is bad
    Buffers are written in the forward pass, before anybody looks at the loss. A step that a gradient scaler skipped
    has still changed them. Training goes on with good numbers, because BatchNorm uses the batch; evaluation is NaN.

    ## Example
    One batch with an Inf under GradScaler: the step is skipped, `bn.running_mean` stays NaN for ever.

    ## The fix
    Take the buffers from the newest healthy checkpoint, or reset them (`module.reset_running_stats()`) and run a
    few batches in training mode. Guard the step as a whole, buffers included.

    ## The popular fix that does not work
    Checking `model.parameters()`: buffers are not parameters. A momentum of 0.1 never forgets a NaN.

    ## References
    torch.nn.BatchNorm2d: running statistics are updated by every forward pass in training mode
    """

    code = "CKP002"
    name = "nonfinite-buffers"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        fix = "take the buffer from a healthy checkpoint, or reset the running statistics and let them settle again"
        yield from report(self, subject, "the buffer", fix, Kind.BUFFERS)
