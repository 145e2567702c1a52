"""CKP007: values within a factor of two of what their type can hold."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind

# Eight-bit floats are scaled to use their whole range on purpose and are not listed.
LIMITS = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.797e308}


class CloseToLimit(Rule[Checkpoint]):
    """A value is so large that doubling it gives infinity in its own type.

    ## What it finds
    Tensors (weights, buffers, averages, optimizer state) whose largest finite magnitude is within a factor of two
    of the largest number of their dtype. Attention masks, which use such values on purpose, are left alone.

    ## Why it is bad
    There is no room left: the next update, a sum of two such values or a square is infinite.

    ## Example
    A float16 `exp_avg_sq` at 50000, or a float16 weight that grew to 40000.

    ## The fix
    Keep this tensor in float32 or bfloat16, and find out why it grows (the learning rate, a missing normalisation).

    ## The popular fix that does not work
    Clipping gradients: it bounds one update, not a value that is already at the edge.

    ## References
    IEEE 754: largest finite value 65504 (binary16), 3.4e38 (binary32)
    """

    code = "CKP007"
    name = "close-to-limit"
    cause = "FP16_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for tensor in subject.of_kind(Kind.WEIGHTS, Kind.BUFFERS, Kind.AVERAGE, Kind.OPTIMIZER):
            stats, limit = tensor.statistics, LIMITS.get(tensor.dtype)
            if stats is None or limit is None or tensor.additive_mask or stats.largest <= limit / 2:
                continue
            yield self.finding(
                f"{tensor.name} reaches {stats.largest:.4g}, within a factor of two of the limit of {tensor.dtype} "
                f"({limit:.4g})",
                fix="keep this tensor in a wider type and find out why it grows",
                evidence={
                    "tensor": tensor.name,
                    "largest": stats.largest,
                    "limit": limit,
                    "dtype": tensor.dtype,
                },
                file=tensor.file,
            )
