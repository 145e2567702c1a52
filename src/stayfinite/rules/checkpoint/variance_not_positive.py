"""CKP010: a running variance that is zero or negative."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind


class VarianceNotPositive(Rule[Checkpoint]):
    """A running variance of BatchNorm is negative (impossible) or zero (a dead channel).

    ## What it finds
    `running_var` with values below zero (error) or equal to zero (warning), with how many channels.

    ## Why it is bad
    BatchNorm divides by sqrt(variance + eps). Below -eps that is the root of a negative number: NaN at evaluation.
    At zero the channel is multiplied by 1/sqrt(eps), about 316: a channel that was dead in training shouts when
    something arrives in it at evaluation.

    ## Example
    An average of two models computed with negative weights; a channel whose input was constant for a whole run.

    ## The fix
    Negative: take it from a healthy checkpoint or run `reset_running_stats()` and a few batches. Zero: look for the
    dead channel (ReLU that never fires, constant input) and prune or re-initialise it.

    ## The popular fix that does not work
    A larger eps: it hides the zero and changes every healthy channel.

    ## References
    torch.nn.BatchNorm2d
    """

    code = "CKP010"
    name = "variance-not-positive"
    cause = "DIST_PARAM"
    severity = Severity.ERROR

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for tensor in subject.of_kind(Kind.BUFFERS, Kind.WEIGHTS, Kind.AVERAGE):
            stats = tensor.statistics
            if tensor.role != "running_var" or stats is None or stats.minimum is None or stats.minimum > 0:
                continue
            negative = stats.minimum < 0
            count = stats.negative if negative else stats.zeros
            kind = "negative" if negative else "zero"
            yield self.finding(
                f"{tensor.name}: {count} of {tensor.numel} variances are {kind} (lowest {stats.minimum:g})",
                fix="reset the running statistics and let them settle, or take them from a healthy checkpoint"
                if negative
                else "find out why these channels were constant; re-initialise or prune them",
                evidence={
                    "tensor": tensor.name,
                    "lowest": stats.minimum,
                    "negative": stats.negative,
                    "zeros": stats.zeros,
                    "channels": tensor.numel,
                },
                file=tensor.file,
                severity=Severity.ERROR if negative else Severity.WARNING,
            )
