"""PRB014: an unusual batch on which the step is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel, Trial
from stayfinite.rules.probe.phrases import born, by_place, conditions, evidence, place


class EdgeCaseFails(Rule[ProbedModel]):
    """A batch that is unusual but possible gives NaN, Inf or an absurd gradient.

    ## What it finds
    A step that is finite on the factory's batch, and not for one of: inputs of zeros, constant inputs, tiny ones, those
    at the ends of the declared range, a single sample, a single token, a fully masked row, labels that are all ignored,
    repeated samples, outputs of a model that is very sure. Conditions that fail at one line are one finding. A warning
    where the loss is bad and the gradients are finite. What the code refuses with an exception is no finding.

    ## Why it is bad
    A long training meets each of them: a black image, the last small batch, an answer that was cut off.

    ## Example
    `(img - img.min()) / (img.max() - img.min())` for a black image

    ## The fix
    Repair the line named: an eps inside the root or the logarithm, max(count, 1) for a count, a guard for empty rows.

    ## The popular fix that does not work
    Dropping such samples: others arise inside of the model.

    ## References
    Lightning-AI/pytorch-lightning issues on the last batch; pytorch/pytorch#41508
    """

    code = "PRB014"
    name = "edge-case-fails"
    cause = "UNKNOWN"  # that of the rule which explains the place, where one does
    severity = Severity.ERROR

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for group in by_place(t for t in subject.failures("edge") if t.expected == "normal"):
            first = group[0]
            yield self.finding(
                f"{conditions(group)}: {first.what}{born(first.located)}",
                fix=first.located.fix or "repair the line named for this input",
                evidence=evidence(first, conditions=[t.condition for t in group]),
                severity=Severity.WARNING if all(_is_milder(t) for t in group) else None,
                cause=first.located.cause,
                **place(first.located),
            )


def _is_milder(trial: Trial) -> bool:
    """An absurd gradient may still be clipped; a bad loss whose gradients are finite does not reach the weights."""
    return trial.outcome == "spike" or trial.spares_weights
