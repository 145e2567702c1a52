"""RUN013: a failure that does not repeat on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class FailureNotRepeated(Rule[FailedStep]):
    """The step failed, and the same step on the same inputs with the same random state does not fail again.

    ## What it finds
    A replay with weights, buffers, batch and random state restored that stays finite.

    ## Why it is bad
    Nothing in the mathematics explains it. What is left: a kernel with a race or uninitialised memory, a faulty
    device, state outside of the model (a custom cache, a file), or a non-deterministic algorithm at the edge of a
    dtype.

    ## Example
    One GPU of eight that gives NaN once a day, with the same container and the same data

    ## The fix
    Replay the capsule on another device and with `torch.use_deterministic_algorithms(True)`; check memory errors
    of the device; keep the seed and the batch.

    ## The popular fix that does not work
    Changing the data set or the rate: the next failure comes at another batch.

    ## References
    torch documentation, "Reproducibility"
    """

    code = "RUN013"
    name = "failure-not-repeated"
    cause = "HARDWARE_KERNEL"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if (
            subject.reproduced is not False
            or subject.births
            or subject.norm_overflowed
            or subject.run.complete
            or subject.trigger == "spike"
        ):
            return
        sink = subject.sink.kind if subject.sink is not None else subject.trigger
        yield self.finding(
            f"the {sink} was not finite at step {subject.step}, and the same step replayed is",
            fix="replay it on another device and with deterministic algorithms; check the device's memory errors",
            evidence={"step": subject.step, "trigger": subject.trigger},
        )
