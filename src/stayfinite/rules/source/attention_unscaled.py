"""SRC031: attention scores that are not divided by the root of the head size."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence

_QUERY = re.compile(r"q|query|queries|q_\w*|\w*_q|\w*query\w*")
_KEY = re.compile(r"k|key|keys|k_\w*|\w*_k|\w*key\w*")
_SCALED = re.compile(
    r"scal|sqrt|\*\*\s*-|factor|norm|temperature|tau|alpha|/\s*\w*(d_k|dim|head)|pow\(", re.IGNORECASE
)


class UnscaledAttention(Rule[SourceFile]):
    """Attention scores go into the softmax without being divided by the square root of the head size.

    ## What it finds
    `softmax(q @ k.transpose(-2, -1))` (also by einsum) of variables named as queries and keys, where
    neither the scores nor, in the lines before, q or k are scaled or normalised.

    ## Why it is bad
    The variance of a dot product grows with the head size: at 64 dimensions the scores are 8 times too
    large, the softmax is nearly one-hot from the start, its gradient vanishes, and in float16 the scores
    themselves overflow at 65504.

    ## Example
    `weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k), dim=-1)`

    ## The fix
    `F.scaled_dot_product_attention(q, k, v)`, or divide by `q.shape[-1] ** 0.5`; normalised queries and
    keys where scores grow.

    ## The popular fix that does not work
    Clamping the scores: it makes the weights equal exactly where they should differ.

    ## References
    Vaswani et al. 2017, section 3.2.1; lucidrains/hyper-connections#4
    """

    code = "SRC031"
    name = "unscaled-attention"
    cause = "FP16_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        lines = subject.text.splitlines()
        for operation in subject.named("softmax"):
            value = operation.operands[0] if operation.operands else None
            product = value.reference if value is not None else None
            if not isinstance(product, Operation) or product.name not in ("matmul", "einsum"):
                continue
            names = {name.rpartition(".")[2].lower() for name in product.names}
            if not (any(_QUERY.fullmatch(n) for n in names) and any(_KEY.fullmatch(n) for n in names)):
                continue
            near = "\n".join(lines[max(0, operation.line - 30) : operation.line])
            if _SCALED.search(near):
                continue
            yield self.finding(
                f"scores of `{product.text or 'q @ k'}` (line {product.line}) go into the softmax unscaled",
                fix="use F.scaled_dot_product_attention, or divide the scores by q.shape[-1] ** 0.5",
                evidence=evidence(operation),
                **at(subject, operation),
            )
