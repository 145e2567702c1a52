"""DAT022: raw bytes as inputs."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.data_set import DataArray, DataSet, Use

_FEWEST = 16


class RawBytesAsInputs(Rule[DataSet]):
    """Inputs are raw bytes: values from 0 to 255 that nobody has divided.

    ## What it finds
    Floating-point inputs whose every value is a whole number between 0 and 255, with some above 200; and, as
    information, inputs that are stored as uint8, which have to be divided after loading.

    ## Why it is bad
    Pixels from 0 to 255 are a hundred times larger than what initialisation and learning rates are made for. The loss
    starts high, falls a little, and overflows half precision easily.

    ## Example
    `x = torch.from_numpy(image).float()` without `/ 255`

    ## The fix
    `x.float() / 255`, then normalise by mean and deviation.

    ## The popular fix that does not work
    BatchNorm as the first layer: its statistics of the first batches are those of raw bytes, and evaluation differs.

    ## References
    torchvision.transforms.v2.ToDtype(scale=True)
    """

    code = "DAT022"
    name = "raw-bytes-as-inputs"
    cause = "DATA_SCALE"
    severity = Severity.WARNING

    def check(self, subject: DataSet) -> Iterator[Finding]:
        if subject.format.endswith("images"):
            return
        for array in subject.arrays:
            if array.use not in (Use.INPUT, Use.EMBEDDING) or array.columns or _values(array) < _FEWEST:
                continue
            if array.minimum < 0 or not 200 < array.maximum <= 255:
                continue
            span = f"{array.minimum:g} to {array.maximum:g}"
            if array.floating and array.whole_numbers:
                message = f"{array.name} is {array.dtype} and holds whole numbers from {span}"
                severity = Severity.WARNING
            elif array.dtype == "uint8":
                message = f"{array.name} is uint8, from {span}: divide by 255 after loading"
                severity = Severity.INFO
            else:
                continue
            yield self.finding(
                message,
                fix="x.float() / 255 before the model sees it, then normalise by mean and deviation",
                evidence={
                    "array": array.name,
                    "dtype": array.dtype,
                    "min": array.minimum,
                    "max": array.maximum,
                },
                severity=severity,
                file=subject.path,
            )


def _values(array: DataArray) -> int:
    count = 1
    for size in array.shape:
        count *= abs(size)
    return count
