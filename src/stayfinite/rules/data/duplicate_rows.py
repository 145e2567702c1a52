"""DAT026: samples that are stored more than once."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet, Use

_MANY = 0.01


class DuplicateRows(Rule[DataSet]):
    """Samples that equal an earlier sample, bit for bit.

    ## What it finds
    Rows of inputs or embeddings that repeat another row exactly; as information, and as a warning above one per cent.

    ## Why it is bad
    The distance between two equal samples is 0, and the gradient of its root is infinite. In contrastive training a
    repeat is a negative that is the positive; between training and validation it is a leak.

    ## Example
    A cache that was appended to twice

    ## The fix
    Remove repeats by their key; where they are meant, add eps inside the root of distances.

    ## The popular fix that does not work
    Clipping the gradient: an infinite gradient stays NaN after clipping.

    ## References
    torch.cdist (gradient at zero distance)
    """

    code = "DAT026"
    name = "duplicate-rows"
    cause = "SQRT_POW_GRAD_AT_ZERO"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for array in subject.arrays:
            if not array.duplicates or array.use not in (Use.INPUT, Use.EMBEDDING):
                continue
            if len(array.shape) < 2 or (array.columns and len(array.columns) < 3):
                continue  # short rows of a table repeat by chance
            row, other = array.duplicates.first[0], array.duplicate_of[0]
            share = array.duplicates.count / max(array.rows, 1)
            yield self.finding(
                f"{array.name}: {array.duplicates.count} of {array.rows} samples repeat an earlier one exactly, such "
                f"as {subject.name_of(row)}, which equals {subject.name_of(other)}",
                fix="remove repeats by their key, or make sure that distances between equal samples are safe",
                evidence={
                    "array": array.name,
                    "samples": array.duplicates.count,
                    "share": share,
                    "pairs": [
                        [subject.name_of(a), subject.name_of(b)]
                        for a, b in zip(array.duplicates.first, array.duplicate_of, strict=False)
                    ],
                },
                severity=Severity.WARNING if share > _MANY else Severity.INFO,
                file=subject.path,
            )
