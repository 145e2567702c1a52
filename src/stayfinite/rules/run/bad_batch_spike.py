"""RUN001: one batch makes loss and gradient norm jump."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.refused_step import RefusedStep


class BadBatchSpike(Rule[RefusedStep]):
    """One batch makes the loss and the gradient norm jump far beyond the run's own noise.

    ## What it finds
    A finite loss and gradient norm that both stand out from the last 128 healthy steps: more than ten robust
    deviations and three times the worst recent excess (or a hundred times the largest value), and large in themselves.

    ## Why it is bad
    One such update can undo hours of training; the moments carry it on for many steps.

    ## Example
    A corrupt record with values a thousand times too large.

    ## The fix
    Skip the batch (the guard did), note its samples, look at them.

    ## The popular fix that does not work
    A fixed threshold (`if loss > 100`): too high late in training, too low at its start, and False for NaN.

    ## References
    facebookresearch/metaseq#521
    """

    code = "RUN001"
    name = "bad-batch-spike"
    cause = "BAD_BATCH_SPIKE"
    severity = Severity.WARNING

    def check(self, subject: RefusedStep) -> Iterator[Finding]:
        if subject.spikes:
            said = ", ".join(
                f"{s.quantity} {s.value:.3g} (typically {s.typical:.3g})" for s in subject.spikes
            )
            yield self.finding(
                f"the step stands out from the recent ones: {said}",
                fix="look at the samples of this batch; if it is right, use Policy(spikes='warn')",
                evidence={s.quantity: {"value": s.value, "typical": s.typical} for s in subject.spikes},
                confidence=0.8,
            )
