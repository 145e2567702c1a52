"""SRC033: a norm or a running sum computed in float16."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, unguarded


class ReductionInFloat16(Rule[SourceFile]):
    """A norm is taken or a sum is accumulated in float16, which ends at 65504.

    ## What it finds
    A norm of a value that was cast to float16, and `total += x` in a loop with float16 on both sides that
    was not divided first.

    ## Why it is bad
    A norm squares first: in float16 elements beyond 256 overflow, although the tensor itself is finite. A
    sum of 256 gradients of 400 is beyond 65504.

    ## Example
    `X = G.to(torch.float16); X = X / (X.norm() + 1e-7)`

    ## The fix
    Reduce in float32 and cast afterwards: `(G / (G.norm() + 1e-7)).to(torch.float16)`; divide before
    summing.

    ## The popular fix that does not work
    A lower loss scale: it only moves the batch at which it happens.

    ## References
    deepspeedai/DeepSpeed#8533, horovod/horovod#1699
    """

    code = "SRC033"
    name = "reduction-in-float16"
    cause = "FP16_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "norm", "vector_norm", "accumulate"):
            value = operation.operands[0]
            if operation.name == "accumulate":
                change = operation.operands[1]
                divided = change.made is not None and change.made.name == "div"
                if not (value.half and change.half) or not operation.in_loop or divided:
                    continue
                message = "a running sum in float16 overflows at 65504"
            else:
                asked = operation.options.get("dtype")
                if not (value.half and value.has("cast")) or (asked is not None and asked.kind == "dtype"):
                    continue
                message = (
                    f"{operation.name} of a value that was cast to float16: it squares, so "
                    "elements beyond 256 overflow"
                )
            yield self.finding(
                message,
                fix="reduce in float32 and cast afterwards; divide before summing",
                evidence=evidence(operation),
                **at(subject, operation),
            )
