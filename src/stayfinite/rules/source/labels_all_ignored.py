"""SRC046: targets that are all the ignored index."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, unguarded


class EveryLabelIgnored(Rule[SourceFile]):
    """Every target of a cross entropy is the ignored index, so the mean is over nothing.

    ## What it finds
    cross_entropy or nll_loss (with the default mean) whose targets are, as the source shows, all equal to
    ignore_index.

    ## Why it is bad
    The mean over no labels is 0/0 = NaN. Its gradient is exactly zero, so the run goes on with a NaN loss,
    or a guard stops it for no visible reason.

    ## Example
    `F.cross_entropy(logits, torch.full((8,), -100))`

    ## The fix
    `reduction="sum"` divided by the number of labels, at least 1; leave such batches out.

    ## The popular fix that does not work
    Another ignore_index: the labels are still all ignored.

    ## References
    microsoft/LMOps#38; stayfinite.ops.masked_cross_entropy
    """

    code = "SRC046"
    name = "every-label-ignored"
    cause = "EMPTY_REDUCTION"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "cross_entropy", "nll_loss", operands=2):
            target, ignored = operation.operands[1], operation.options.get("ignore_index")
            reduction = operation.options.get("reduction")
            number = ignored.number if ignored is not None else -100.0
            if reduction is not None and reduction.const != "mean":
                continue
            if number is None or not target.known or not (target.low == target.high == number):
                continue
            yield self.finding(
                f"every target is {number:g}, the ignored index: the mean is over nothing",
                fix='reduction="sum" divided by the number of labels (at least 1), or leave such batches out',
                evidence=evidence(operation, target),
                **at(subject, operation),
            )
