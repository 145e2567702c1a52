"""SRC042: an eps added to a divisor that can be negative."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence, interval, level, unguarded


class EpsAddedToSignedValue(Rule[SourceFile]):
    """An eps is added to a divisor that can be negative, which moves the zero instead of removing it.

    ## What it finds
    `a / (b + eps)` where the source shows that b takes both signs: a layer's output, noise, a cosine, a
    tanh.

    ## Why it is bad
    b + eps is zero at b = -eps, and changes sign there: the quotient jumps from minus to plus infinity. For
    a divisor that cannot be negative the eps is fine.

    ## Example
    `x / (torch.cos(t) + 1e-8)`

    ## The fix
    Keep the divisor away from zero by size, not by shift: `b.sign() * b.abs().clamp_min(eps)`, or rewrite
    without the division. `max(b, eps)` only if b is meant to be positive.

    ## The popular fix that does not work
    A larger eps: the pole moves to another value of b.

    ## References
    torch.nn.functional.cosine_similarity (clamps norms, does not shift them)
    """

    code = "SRC042"
    name = "eps-added-to-signed-value"
    cause = "EMPTY_REDUCTION"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "div", operands=2):
            made = operation.operands[1].made
            if operation.selected or made is None or made.name != "add":
                continue
            for eps, value in (made.operands, made.operands[::-1]):
                small = eps.has("eps") or (eps.number is not None and 0 < eps.number <= 1e-3)
                if not small or not value.known or not (value.low < 0 < value.high) or value.kind == "number":
                    continue
                yield self.finding(
                    f"the divisor lies in {interval(value)} before eps is added: it is zero at -eps",
                    fix="keep it away from 0 by size: b.sign() * b.abs().clamp_min(eps); "
                    "max(b, eps) if it must be positive",
                    evidence=evidence(operation, value),
                    severity=level(operation, self.severity),
                    **at(subject, operation),
                )
                break
