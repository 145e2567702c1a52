"""PRB004: a finite loss whose gradient is not."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, evidence, place


class GradientNotFinite(Rule[ProbedModel]):
    """The loss of the first step is finite, its gradient is NaN, Inf or absurdly large.

    ## What it finds
    A gradient with NaN or Inf, or beyond 1e10, on the factory's own batch.

    ## Why it is bad
    The loss looks healthy, and the first update destroys the weights.

    ## Example
    `z.var(0).sqrt()` of a constant feature: the gradient of the root at 0 is infinite

    ## The fix
    Repair the line named; for a root, add the eps inside of it.

    ## The popular fix that does not work
    Clipping: the norm of a NaN gradient is NaN, and clipping by it makes every gradient NaN.

    ## References
    pytorch/pytorch#4320
    """

    code = "PRB004"
    name = "first-gradient-not-finite"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.ERROR

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for trial in subject.failures("gradient"):
            if trial.outcome not in ("gradient", "spike"):
                continue
            yield self.finding(
                f"{trial.what}{born(trial.located)}",
                fix=trial.located.fix or "repair the place where the value is born",
                evidence=evidence(trial),
                cause=trial.located.cause,
                **place(trial.located),
            )
