"""PRB011: inputs only a little larger, and the step is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, by_place, conditions, evidence, place


class ScaledInputFails(Rule[ProbedModel]):
    """Inputs two, four or ten times as large as those of the batch give NaN or Inf.

    ## What it finds
    A step that is finite on the factory's batch and not when its float inputs are multiplied by 2, 4 or 10.

    ## Why it is bad
    A batch that is larger by such a factor comes sooner or later: there is no headroom.

    ## Example
    `torch.exp(scores)` without the maximum subtracted

    ## The fix
    Repair the line named; or normalise the inputs where they are read, and declare their range.

    ## The popular fix that does not work
    A lower learning rate: it has no part in this.

    ## References
    pyg-team/pytorch_geometric, softmax of GATConv
    """

    code = "PRB011"
    name = "scaled-input-fails"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        near = [t for t in subject.failures("stability") if t.expected == "scaled"]
        near += [
            t for t in subject.failures("edge") if t.expected == "beyond" and t.condition.endswith("(x10)")
        ]
        for group in by_place(near):
            first = group[0]
            yield self.finding(
                f"{conditions(group)}: {first.what}{born(first.located)}",
                fix=first.located.fix or "normalise the inputs, or repair the line named",
                evidence=evidence(first),
                cause=first.located.cause,
                **place(first.located),
            )
