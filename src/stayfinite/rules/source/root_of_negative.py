"""SRC006: a square root whose argument can be below zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile, Value
from stayfinite.rules.source.phrases import at, evidence, interval, level, unguarded


class RootCanBeNegative(Rule[SourceFile]):
    """The argument of a square root can be negative, so the result can be NaN.

    ## What it finds
    sqrt of a difference whose parts show that it can be negative: `1 - (p * p).sum(-1)`, `E[x**2] -
    E[x]**2` (negative by rounding), a literal below zero, the raw output of a linear layer.

    ## Why it is bad
    sqrt of a negative number is NaN, however small the number. Differences of nearly equal numbers are
    negative by rounding alone.

    ## Example
    `torch.sqrt(1.0 - (p * p).sum(-1))`: NaN for every point outside the unit sphere

    ## The fix
    Fix the geometry or the formula (`x.var()` instead of `E[x**2] - E[x]**2`); then clamp what rounding
    leaves: `torch.sqrt((1 - r2).clamp_min(eps))`.

    ## The popular fix that does not work
    `torch.sqrt(x.abs())`: finite and wrong; a negative radius becomes a positive one.

    ## References
    Kai-46/nerfplusplus#10
    """

    code = "SRC006"
    name = "root-can-be-negative"
    cause = "DOMAIN_VIOLATION"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "sqrt", "rsqrt"):
            value = operation.operands[0]
            if not value.known or value.kind == "number":
                continue
            if value.low >= 0 or not _difference_or_raw(value) or operation.selected:
                continue
            yield self.finding(
                f"{operation.name} of a value that can be negative (it lies in {interval(value)})",
                fix="compute the quantity so that it cannot be negative, then clamp what "
                "rounding leaves (clamp_min(eps))",
                evidence=evidence(operation, value),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _difference_or_raw(value: Value) -> bool:
    """Something minus squares (or squares minus something), a raw layer output, noise, or numbers in the source."""
    made = value.made
    if made is None:
        return False
    if value.has("network") or value.has("noise") or value.has("literal"):
        return True
    return made.name == "sub" and any(operand.has("square") for operand in made.operands)
