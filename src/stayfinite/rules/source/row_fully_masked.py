"""SRC047: a mask, written in the source, that leaves a row of attention nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile, Value
from stayfinite.rules.source.phrases import at, evidence


class RowFullyMasked(Rule[SourceFile]):
    """A mask leaves a row of attention nothing to attend to, so its softmax is NaN.

    ## What it finds
    nn.MultiheadAttention with a key_padding_mask in which a row is all True, and a softmax over scores
    filled with minus infinity by a mask that is all True, where the source shows it.

    ## Why it is bad
    A softmax over nothing but minus infinity is 0/0. Multiplying the output by the mask afterwards does not
    help: 0 times NaN is NaN.

    ## Example
    `mha(x, x, x, key_padding_mask=torch.tensor([[False] * 5, [True] * 5]))`

    ## The fix
    Leave such rows out, unmask one key for them, or use `F.scaled_dot_product_attention`, which returns 0
    for them.

    ## The popular fix that does not work
    Multiplying the output by the mask.

    ## References
    pytorch/pytorch#41508
    """

    code = "SRC047"
    name = "row-fully-masked"
    cause = "ATTN_FULLY_MASKED"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("MultiheadAttention.call"):
            mask = operation.options.get("key_padding_mask")
            rows = mask.reference if mask is not None else None
            if isinstance(rows, Value) and any(_all_true(row) for row in rows.items or ()):
                yield self.finding(
                    "a row of key_padding_mask is all True: its attention is NaN",
                    fix="leave such rows out, or unmask one key; "
                    "F.scaled_dot_product_attention returns 0 for them",
                    evidence=evidence(operation),
                    **at(subject, operation),
                )
        for operation in subject.named("softmax"):
            filled = (
                operation.operands[0].made_by("masked_fill", "masked_fill_", depth=1)
                if operation.operands
                else None
            )
            reference = operation.operands[0].reference if operation.operands else None
            filled = filled or (
                reference if isinstance(reference, Operation) and "masked_fill" in reference.name else None
            )
            if filled is None or len(filled.operands) < 3 or filled.operands[2].number != -math.inf:
                continue
            mask = filled.operands[1]
            rows = mask.reference if isinstance(mask.reference, Value) else None
            ones = mask.known and mask.low == mask.high == 1.0
            if ones or (rows is not None and any(_all_true(row) for row in rows.items or ())):
                yield self.finding(
                    "everything in a row is filled with minus infinity: its softmax is NaN",
                    fix="leave such rows out, or fill with torch.finfo(dtype).min",
                    evidence=evidence(operation),
                    **at(subject, operation),
                )


def _all_true(row: Value) -> bool:
    return bool(row.items) and all(item.const in (True, 1) for item in row.items or ())
