"""DAT024: columns that hold one value only."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataArray, DataSet, Use

_FEWEST = 8


class ConstantColumns(Rule[DataSet]):
    """Columns of a table, or dimensions of vectors, that are the same in every sample.

    ## What it finds
    Columns of a table with at least eight rows that never change; dimensions of stored vectors that never change.
    Pixels of images are not meant (a border is constant).

    ## Why it is bad
    Standardising divides by the deviation of the column, which is 0. A dead dimension of an embedding means that the
    encoder which made it had a dead unit.

    ## Example
    `(x - x.mean(0)) / x.std(0)` with a column that is 1 everywhere

    ## The fix
    Drop the column, or floor the deviation: `/ x.std(0).clamp_min(1e-6)`.

    ## The popular fix that does not work
    `nan_to_num` after the division: it hides the columns that became Inf as well.

    ## References
    sklearn.preprocessing.StandardScaler (scales zero variance by 1)
    """

    code = "DAT024"
    name = "constant-columns"
    cause = "PREPROC_ZERO_RANGE"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        if subject.format.endswith("images"):
            return
        for array in subject.arrays:
            table = bool(array.columns) and array.use is Use.INPUT
            vectors = len(array.shape) == 2 and array.floating and array.use in (Use.INPUT, Use.EMBEDDING)
            if (
                not (table or vectors)
                or array.rows < _FEWEST
                or not array.constant_columns
                or not _varies(array)
            ):
                continue
            names = [
                array.columns[index] if array.columns else str(index) for index in array.constant_columns
            ]
            total = len(array.columns) or array.shape[1]
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            yield self.finding(
                f"{array.name}: {len(names)} of {total} columns hold one value in all {array.rows} samples: {shown}",
                fix="drop these columns, or floor the deviation before dividing by it",
                evidence={"array": array.name, "columns": names[:50], "of": total, "rows": array.rows},
                file=subject.path,
            )


def _varies(array: DataArray) -> bool:
    """At least one column does change; else it is all one sample, which DAT026 says."""
    return len(array.constant_columns) < (len(array.columns) or array.shape[1])
