"""PRB002: a loss that is not finite on an ordinary batch."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, evidence, place


class LossNotFinite(Rule[ProbedModel]):
    """The loss, or one of its components, is NaN or Inf in the very first step.

    ## What it finds
    A loss or component that is not finite on the factory's own batch with the model as it is initialised; or a loss
    function that raises. The component is named where the loss function returns a dict.

    ## Why it is bad
    The first step ends the training.

    ## Example
    `loss = (x * mask).sum() / mask.sum()` for a batch whose mask is empty

    ## The fix
    Repair the line where the value is born.

    ## The popular fix that does not work
    Skipping batches with a bad loss: it hides that every batch is bad.

    ## References
    neosr-project/neosr#87
    """

    code = "PRB002"
    name = "first-loss-not-finite"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.ERROR

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        if subject.failures("forward"):
            return
        for trial in subject.trials:
            raised = trial.outcome == "raised"
            if trial.battery != "loss" or not (raised or trial.outcome in ("loss", "component")):
                continue
            yield self.finding(
                f"{'the step raised ' if raised else ''}{trial.what}{born(trial.located)}",
                fix=trial.located.fix or "repair the place where the value is born",
                evidence=evidence(trial),
                cause=trial.located.cause,
                **place(trial.located),
            )
