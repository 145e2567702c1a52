"""DAT028: labels outside the classes."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataSet, Use


class StoredLabelOutOfRange(Rule[DataSet]):
    """Stored labels that are negative, or not below the number of classes.

    ## What it finds
    Labels below 0 (other than the ignore index), and with `--classes N` labels of N and above; with their samples.

    ## Why it is bad
    On a GPU such a label reads memory outside the table or ends the process with a device-side assert far from its
    cause; on other backends the loss is garbage.

    ## Example
    Labels 1 to 10 for ten classes, which count from 0

    ## The fix
    Map labels to 0..N-1 where the data is made, and give the loss the ignore index that the data uses.

    ## The popular fix that does not work
    Clamping labels: sample 10 then trains class 9.

    ## References
    DAT013 for labels of a failing step
    """

    code = "DAT028"
    name = "stored-label-out-of-range"
    cause = "LABEL_INVALID"
    severity = Severity.ERROR

    def check(self, subject: DataSet) -> Iterator[Finding]:
        wanted = subject.expected
        for array in subject.arrays:
            if array.use is not Use.LABEL or not array.outside or (array.floating and wanted.classes is None):
                continue
            classes = f"outside 0 to {wanted.classes - 1}" if wanted.classes is not None else "negative"
            shown = ", ".join(f"{value:g}" for value in dict.fromkeys(array.outside_values))
            padding = wanted.classes is None and array.minimum >= -1
            yield self.finding(
                f"{array.name}: {array.outside.count} of {array.rows} samples have labels that are {classes} ({shown})"
                f": {subject.named(array.outside)}",
                fix="map labels to 0..N-1 where the data is made; name the one to ignore with --ignore-index",
                evidence={
                    "array": array.name,
                    "samples": array.outside.count,
                    "first_samples": [subject.name_of(sample) for sample in array.outside.first],
                    "values": array.outside_values,
                    "classes": wanted.classes,
                },
                severity=Severity.WARNING if padding else None,
                file=subject.path,
            )
