"""PRB009: values that float32 holds and float16 would not."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel


class BeyondFloat16(Rule[ProbedModel]):
    """An operation puts out values beyond 65504, which float16 cannot hold.

    ## What it finds
    An op of the forward pass whose result passes 65504 although its inputs do not. A constant written on purpose (a
    mask of -1e9) is left out.

    ## Why it is bad
    Under float16 autocast this line gives Inf, and the next subtraction or product makes NaN of it. float32 and
    bfloat16 hold it.

    ## Example
    A sum of squares over a large image; attention scores without their scale

    ## The fix
    Take the mean instead of the sum, scale before the product, or keep this line in float32.

    ## The popular fix that does not work
    Clamping at 65504: the gradient of what is clamped is 0.

    ## References
    huggingface/transformers DebugUnderflowOverflow
    """

    code = "PRB009"
    name = "beyond-float16"
    cause = "FP16_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        told = {(t.located.file, t.located.line) for t in subject.failures("stability")}
        for peak in subject.peaks:
            if (peak.file, peak.line) in told and peak.line is not None:
                continue
            yield self.finding(
                f"{peak.op} reaches {peak.absmax:.4g}: finite in float32, Inf in float16 (limit 65504)",
                fix="scale before this operation, take a mean instead of a sum, or keep it in float32",
                evidence={"battery": "stability", "op": peak.op, "absmax": peak.absmax, "limit": 65504},
                file=peak.file,
                line=peak.line,
            )
