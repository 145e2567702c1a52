"""CKP006: finite values that become Inf when the checkpoint is cast to float16."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.checkpoint import Checkpoint, Kind

LIMIT = 65504.0


class OverflowsInFloat16(Rule[Checkpoint]):
    """A value is finite here and becomes infinite when the checkpoint is cast to float16.

    ## What it finds
    Weights, buffers and averages in a wider type whose largest magnitude is above 65504.

    ## Why it is bad
    `model.half()` and "save in fp16 to halve the file" turn a good model into one with Inf, silently: the file is
    smaller and loads without complaint.

    ## Example
        torch.save({k: v.half() for k, v in model.state_dict().items()}, "small.pt")    # running_var was 1.2e5

    ## The fix
    Cast to bfloat16 (it has the range of float32), keep this tensor in float32, or normalise what makes it so large.

    ## The popular fix that does not work
    Clamping to 65504: a variance or a weight that is cut off is another model, and nothing says so.

    ## References
    IEEE 754 binary16: largest finite value 65504
    """

    code = "CKP006"
    name = "overflows-in-float16"
    cause = "FP16_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: Checkpoint) -> Iterator[Finding]:
        for tensor in subject.of_kind(Kind.WEIGHTS, Kind.BUFFERS, Kind.AVERAGE):
            stats = tensor.statistics
            if not tensor.floating or tensor.dtype == "float16" or stats is None or tensor.additive_mask:
                continue
            if stats.largest > LIMIT:
                yield self.finding(
                    f"{tensor.name} ({tensor.dtype}) reaches {stats.largest:.3g}; in float16 it would be Inf "
                    f"(limit {LIMIT:.0f})",
                    fix="cast to bfloat16 instead of float16, or keep this tensor in float32",
                    evidence={
                        "tensor": tensor.name,
                        "largest": stats.largest,
                        "limit": LIMIT,
                        "dtype": tensor.dtype,
                    },
                    file=tensor.file,
                )
