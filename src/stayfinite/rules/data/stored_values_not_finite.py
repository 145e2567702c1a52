"""DAT020: NaN or Inf in stored data."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet, Use


class StoredValuesNotFinite(Rule[DataSet]):
    """Stored samples hold NaN or Inf.

    ## What it finds
    Values of a data file, or of a loader's batches, that are not finite, with the samples they are in. Empty cells of
    a table count: they become NaN in a tensor.

    ## Why it is bad
    One such value makes the loss of its batch NaN, and one update with it the weights. Shuffling moves it to another
    step in each run, so it looks like chance.

    ## Example
    A cache of embeddings with one row of NaN, because its image could not be decoded

    ## The fix
    Drop or repair the named samples where the data is made; compute the rows of a cache again.

    ## The popular fix that does not work
    `nan_to_num` in the loader: the sample is then trained on as zeros, and the fault stays in the data.

    ## References
    keras-team/keras#6921; DAT010 for a batch inside a step
    """

    code = "DAT020"
    name = "stored-values-not-finite"
    cause = "DATA_NONFINITE"
    severity = Severity.ERROR

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for array in subject.arrays:
            if not array.bad:
                continue
            counts = " and ".join(
                f"{count} {what}" for count, what in ((array.nan, "NaN"), (array.inf, "Inf")) if count
            )
            cache = array.use is Use.EMBEDDING
            column = ""
            if array.first_bad is not None and array.first_bad[1] < len(array.columns):
                column = f", first in column {array.columns[array.first_bad[1]]}"
            yield self.finding(
                f"{array.name}: {counts} in {array.bad.count} of {array.rows} samples{column}: "
                f"{subject.named(array.bad)}",
                fix="compute these rows of the cache again"
                if cache
                else "drop or repair these samples where the data is made",
                evidence={
                    "array": array.name,
                    "nan": array.nan,
                    "inf": array.inf,
                    "samples": array.bad.count,
                    "first_samples": [subject.name_of(sample) for sample in array.bad.first],
                    "first_index": list(array.first_bad or ()),
                },
                file=subject.path,
            )
