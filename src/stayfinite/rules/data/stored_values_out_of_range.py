"""DAT021: stored data outside its expected range."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataArray, DataSet, Use

_LARGE = 1e4
_HALF = 65504.0


class StoredValuesOutOfRange(Rule[DataSet]):
    """Stored inputs lie outside the range that was asked for, or are orders of magnitude too large.

    ## What it finds
    Samples outside `--range LOW HIGH`, vectors whose norm is not `--norm N`; without these, single samples a thousand
    times larger than the others, and inputs beyond 10,000 (a note for tables, which are kept in units of their own).

    ## Why it is bad
    Activations and gradients scale with the input. The rate that suits normalised inputs diverges for raw ones; beyond
    65504 a value is infinite in float16.

    ## Example
    A column of prices in cents beside columns between 0 and 1; one record of 1e25

    ## The fix
    Normalise by statistics of the training set, and reject records out of range where they are read.

    ## The popular fix that does not work
    A tiny learning rate: it suits the large features only, the others are not learnt at all.

    ## References
    DAT011 for inputs of a failing step
    """

    code = "DAT021"
    name = "stored-values-out-of-range"
    cause = "DATA_SCALE"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        for array in subject.arrays:
            if array.use not in (Use.INPUT, Use.EMBEDDING) or subject.format.endswith("images"):
                continue
            if array.outside:
                yield self._outside(subject, array)
            elif array.far:
                yield self._far(subject, array)
            elif array.floating and array.largest > _LARGE and not array.whole_numbers:
                yield self._large(subject, array)

    def _outside(self, data: DataSet, array: DataArray) -> Finding:
        wanted = data.expected
        asked = (
            f"norm {wanted.norm:g}"
            if wanted.norm is not None and wanted.low is None
            else f"{wanted.low:g} to {wanted.high:g}"
        )
        shown = ", ".join(f"{value:.4g}" for value in array.outside_values[:3])
        return self.finding(
            f"{array.name}: {array.outside.count} of {array.rows} samples are outside {asked} (such as {shown}): "
            f"{data.named(array.outside)}",
            fix="normalise these samples, or reject them where the data is read",
            evidence={
                "array": array.name,
                "samples": array.outside.count,
                "first_samples": [data.name_of(sample) for sample in array.outside.first],
                "min": array.minimum,
                "max": array.maximum,
            },
            severity=Severity.ERROR,
            file=data.path,
        )

    def _far(self, data: DataSet, array: DataArray) -> Finding:
        return self.finding(
            f"{array.name}: {array.far.count} of {array.rows} samples are a thousand times larger than the others "
            f"(up to {array.far_value:.3g}, usual {array.typical:.3g}): {data.named(array.far)}",
            fix="look at these samples; reject records out of range where they are read",
            evidence={
                "array": array.name,
                "samples": array.far.count,
                "first_samples": [data.name_of(sample) for sample in array.far.first],
                "largest": array.far_value,
                "usual": array.typical,
            },
            file=data.path,
        )

    def _large(self, data: DataSet, array: DataArray) -> Finding:
        beyond = ", beyond the range of float16" if array.largest > _HALF else ""
        return self.finding(
            f"{array.name}: values from {array.minimum:.4g} to {array.maximum:.4g}{beyond}",
            fix="normalise by statistics of the training set (x - mean) / std before the model sees it",
            evidence={"array": array.name, "min": array.minimum, "max": array.maximum, "mean": array.mean,
                      "std": array.deviation},
            severity=Severity.INFO if array.columns else None,  # tables are kept raw, in units of their own
            file=data.path,
        )  # fmt: skip
