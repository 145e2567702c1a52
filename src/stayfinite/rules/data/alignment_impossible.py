"""DAT030: CTC samples that cannot be aligned."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet


class AlignmentImpossible(Rule[DataSet]):
    """Stored CTC samples with fewer frames than their labels need.

    ## What it finds
    Data with input lengths and target lengths (and targets, for the repeats) in which a sample has fewer frames than
    labels plus pairs of equal neighbours.

    ## Why it is bad
    No alignment exists: the loss of the sample is infinite and its gradient NaN.

    ## Example
    "hello" needs six frames: five labels, and a blank between the two l

    ## The fix
    Drop the named samples, or downsample less.

    ## The popular fix that does not work
    Comparing frames with labels only: it forgets the repeats.

    ## References
    mozilla/DeepSpeech#1941; NUM012 for a failing step
    """

    code = "DAT030"
    name = "alignment-impossible"
    cause = "CTC_INFEASIBLE"
    severity = Severity.ERROR

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for fault in subject.alignments:
            there, needed = fault.example
            yield self.finding(
                f"{fault.bad.count} of {fault.total} samples cannot be aligned: {subject.named(fault.bad)}; the first "
                f"has {there} frames and needs {needed} ({fault.frames}, {fault.labels})",
                fix="drop samples with fewer frames than labels plus repeats, or downsample less",
                evidence={
                    "samples": fault.bad.count,
                    "of": fault.total,
                    "first_samples": [subject.name_of(sample) for sample in fault.bad.first],
                    "frames": there,
                    "needed": needed,
                },
                file=subject.path,
            )
