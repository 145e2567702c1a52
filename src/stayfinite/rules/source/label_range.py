"""SRC035: labels that the layer before the loss has no class for."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, interval


class LabelOutOfRange(Rule[SourceFile]):
    """Labels reach values for which the last layer has no class.

    ## What it finds
    cross_entropy or nll_loss whose targets, as the source shows, go beyond the number of outputs of the
    layer before (or below 0 without being the ignore index).

    ## Why it is bad
    On a CPU an IndexError, on a GPU a device-side assert far from here, in other frameworks NaN. Mostly
    labels from 1 to C instead of 0 to C - 1.

    ## Example
    `y = torch.randint(1, C + 1, (64,))` with `head = nn.Linear(8, C)`

    ## The fix
    Shift or filter the labels, and check minimum and maximum once before training.

    ## The popular fix that does not work
    A layer with one class more: it trains a class that does not exist.

    ## References
    VladimirLi/tfVideoResearch#9
    """

    code = "SRC035"
    name = "label-beyond-classes"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("cross_entropy", "nll_loss"):
            if len(operation.operands) < 2:
                continue
            logits, target = operation.operands[:2]
            if not target.known or (not target.has("integer") and target.made_by("randint") is None):
                continue
            classes = logits.shape[-1] if logits.shape else None
            if classes is None or target.high < classes:
                continue
            yield self.finding(
                f"labels lie in {interval(target)} and the layer has {classes} classes (0 to {classes - 1})",
                fix="shift the labels to 0..C-1, and check their minimum and maximum before training",
                evidence={**evidence(operation, target), "classes": classes},
                **at(subject, operation),
            )
