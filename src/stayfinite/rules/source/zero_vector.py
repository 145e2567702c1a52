"""SRC010: a vector that can be zero divided by its norm."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, level, unprotected


class ZeroVectorNormalised(Rule[SourceFile]):
    """A vector is divided by its norm, which is zero for a zero vector.

    ## What it finds
    `x / x.norm()` without eps, clamp or test; and `F.normalize` of vectors that the source shows to be
    exactly zero (padding rows of an embedding through layers without bias).

    ## Why it is bad
    0/0 is NaN. `F.normalize` avoids the NaN with an eps of 1e-12, but its gradient at a zero vector is then
    1e12: the next step throws the weights away.

    ## Example
    `z = F.normalize(proj(emb(ids)), dim=-1)` with `padding_idx=0` and `proj` without bias

    ## The fix
    Leave zero rows out (`h[ids != pad]`), or give the norm a floor of the data's own size: `x /
    x.norm(dim=-1, keepdim=True).clamp_min(1e-6)`.

    ## The popular fix that does not work
    `nan_to_num` afterwards: the gradient of the division is NaN all the same.

    ## References
    pytorch/pytorch#184575; torch.nn.functional.normalize (eps=1e-12); stayfinite.ops.normalize
    """

    code = "SRC010"
    name = "norm-can-be-zero"
    cause = "NORMALIZE_ZERO_VECTOR"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unprotected(subject, "div", "normalize"):
            if operation.name == "normalize":
                value = operation.operands[0]
                if not value.has("zero_rows") or operation.no_grad:
                    continue
                message = (
                    "normalize of rows that are exactly zero (padding): the gradient there is about 1e12"
                )
            else:
                value = operation.operands[1]
                if not value.has("norm") or not value.reaches(0.0) or value.made is None:
                    continue
                dividend = operation.operands[0]
                # A trust ratio, or a cosine by hand: the norm below can be 0.
                ratio = dividend.has("norm") or value.has("norm_product")
                if dividend.number is not None or not (
                    ratio or _same_vector(operation.text, value.made.text)
                ):
                    continue
                message = f"division by a norm (line {value.made.line}), which is 0 for a zero vector"
            yield self.finding(
                message,
                fix="leave zero rows out, or floor the norm: x.norm(dim=-1, keepdim=True).clamp_min(1e-6)",
                evidence=evidence(operation, value),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _same_vector(text: str, norm: str) -> bool:
    """`x / x.norm()` or `x / norm`, where the norm was taken of x."""
    above = text.partition("/")[0].strip(" (")
    return bool(above) and (norm.startswith(f"{above}.") or f"({above}" in norm)
