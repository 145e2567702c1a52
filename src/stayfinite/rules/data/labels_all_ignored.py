"""DAT027: samples without a label that counts."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet, Use


class LabelsAllIgnored(Rule[DataSet]):
    """Samples in which every label is ignored.

    ## What it finds
    Rows of labels that consist of the ignore index only (-100 by default, `--ignore-index`).

    ## Why it is bad
    The mean over no labels is 0/0: `cross_entropy` gives NaN for a batch of such samples, and a hand-written masked
    mean gives NaN gradients. A small batch meets them sooner.

    ## Example
    A prompt longer than the context, so that the answer was cut off

    ## The fix
    Drop the named samples, or divide by max(1, number of labels).

    ## The popular fix that does not work
    A larger batch: it makes the event rarer, not impossible.

    ## References
    torch.nn.functional.cross_entropy (ignore_index)
    """

    code = "DAT027"
    name = "labels-all-ignored"
    cause = "EMPTY_REDUCTION"
    severity = Severity.ERROR

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for array in subject.arrays:
            if array.use is not Use.LABEL or not array.ignored:
                continue
            yield self.finding(
                f"{array.name}: every label is {subject.expected.ignore_index} in {array.ignored.count} of "
                f"{array.rows} samples: {subject.named(array.ignored)}",
                fix="drop these samples, or divide by max(1, number of labels that count)",
                evidence={
                    "array": array.name,
                    "samples": array.ignored.count,
                    "first_samples": [subject.name_of(sample) for sample in array.ignored.first],
                    "ignore_index": subject.expected.ignore_index,
                },
                file=subject.path,
            )
