"""DAT023: samples that hold one value only."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet, Samples, Use


class ConstantSamples(Rule[DataSet]):
    """Samples in which every value is the same.

    ## What it finds
    Rows, images or vectors of one single value (all white, all 3.7); images that are all black.

    ## Why it is bad
    Normalising a sample by its own range or deviation divides by zero: (x - min) / (max - min) is NaN for it. It also
    teaches nothing.

    ## Example
    A blank page in a folder of scans

    ## The fix
    Drop the named samples, or floor the divisor: `/ max(range, eps)`.

    ## The popular fix that does not work
    Skipping batches whose loss is NaN: every epoch meets the sample again.

    ## References
    DAT012 for a constant sample inside a failing step
    """

    code = "DAT023"
    name = "constant-samples"
    cause = "PREPROC_ZERO_RANGE"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        pictures = subject.format.endswith("images")
        for array in subject.arrays:
            if array.use not in (Use.INPUT, Use.EMBEDDING):
                continue
            samples = array.constant
            if pictures:  # a black image is one of them
                first = sorted({*samples.first, *array.zero.first})[: Samples.MOST]
                samples = Samples(samples.count + array.zero.count, first)
            if not samples:
                continue
            yield self.finding(
                f"{array.name}: {samples.count} of {array.rows} samples hold one value only: {subject.named(samples)}",
                fix="drop these samples, or floor the divisor where samples are normalised",
                evidence={
                    "array": array.name,
                    "samples": samples.count,
                    "first_samples": [subject.name_of(sample) for sample in samples.first],
                },
                file=subject.path,
            )
