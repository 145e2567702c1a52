"""STA011: state that outlives a step is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.refused_step import RefusedStep


class StatePoisoned(Rule[RefusedStep]):
    """Parameters, moments, buffers or averages that outlive the step hold NaN or Inf.

    ## What it finds
    Non-finite values in any kept state when a step is refused: parameters, optimizer moments, buffers such as
    batch norm's running statistics, and EMA weights.

    ## Why it is bad
    Every later step starts from it, so skipping batches cannot help. The guard rolls back to the last verified
    copy of everything.

    ## Example
    A script that skips the step when the loss is NaN, after the forward pass has already put NaN into
    `running_mean`.

    ## The fix
    Restore all state together from a verified copy: weights, moments, buffers, averages.

    ## The popular fix that does not work
    Restoring the weights alone: poisoned moments make them NaN again at the next step.

    ## References
    ultralytics/ultralytics#24986
    """

    code = "STA011"
    name = "state-poisoned"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: RefusedStep) -> Iterator[Finding]:
        if subject.bad_update:
            return  # STA012 says which update made it so
        kinds = {
            "parameters": subject.parameters,
            "optimizer state": subject.moments,
            "buffers": subject.buffers,
            "averages": subject.averages,
        }
        bad = {kind: tensors for kind, tensors in kinds.items() if tensors}
        if bad:
            listed = "; ".join(f"{kind}: {tensors[0].name}" for kind, tensors in bad.items())
            yield self.finding(
                f"state that outlives the step is not finite ({listed})",
                fix="restore weights, moments, buffers and averages together from a verified copy",
                evidence={
                    kind: [tensor.to_json() for tensor in tensors[:5]] for kind, tensors in bad.items()
                },
            )
