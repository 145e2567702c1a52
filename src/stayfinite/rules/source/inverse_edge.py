"""SRC012: acos, asin, atanh, acosh, erfinv or atan2 at the edge of its domain."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence, interval, level, origin, unguarded

EDGES: dict[str, tuple[float, float | None]] = {
    "acos": (-1.0, 1.0),
    "arccos": (-1.0, 1.0),
    "asin": (-1.0, 1.0),
    "arcsin": (-1.0, 1.0),
    "atanh": (-1.0, 1.0),
    "arctanh": (-1.0, 1.0),
    "erfinv": (-1.0, 1.0),
    "acosh": (1.0, None),
    "arccosh": (1.0, None),
    "digamma": (0.0, None),
    "lgamma": (0.0, None),
    "polygamma": (0.0, None),
}


class InverseFunctionAtItsEdge(Rule[SourceFile]):
    """An inverse function is given values that reach the edge of its domain, where it or its gradient is infinite.

    ## What it finds
    acos, asin, atanh and erfinv of values that reach 1 or -1 (a cosine similarity, products of unit
    vectors, a tanh, clipped data), acosh of values that reach 1, atan2 of two values that can both be 0,
    tan of unbounded network output is not reported (its poles cannot be hit exactly).

    ## Why it is bad
    acos'(1) is infinite, atanh(1) too. Cosines of parallel vectors round to exactly 1 (or to 1.0000001,
    where acos is NaN); saturated or clipped values are exactly 1.

    ## Example
    `angle = torch.acos(F.cosine_similarity(a, b))`

    ## The fix
    Clamp inside the edge, `x.clamp(-1 + 1e-6, 1 - 1e-6)` in float32; or a form without an edge:
    `torch.atan2(cross.norm(dim=-1), dot)` for angles.

    ## The popular fix that does not work
    `x.clamp(-1, 1)`: acos is then defined, but its gradient at the edge is still infinite.

    ## References
    rlworkgroup/garage#2129, pytorch/pytorch#8069
    """

    code = "SRC012"
    name = "inverse-function-at-its-edge"
    cause = "INVTRIG_BOUNDARY"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, *EDGES, "atan2", "arctan2"):
            value = operation.operands[0]
            if operation.name in ("atan2", "arctan2"):
                if len(operation.operands) < 2 or operation.no_grad:
                    continue
                both = operation.operands[:2]
                if not all(
                    v.known and v.reaches(0.0) and v.made_by("relu", "norm", "abs", depth=2) for v in both
                ):
                    continue
                reached = "both arguments can be 0, where the gradient is 0/0"
            else:
                low, high = EDGES[operation.name]
                if not value.known and _looks_like_cosine(operation):
                    yield self.finding(
                        f"`{operation.text}` is not clamped: rounding takes a cosine to 1 and beyond",
                        fix="clamp inside the edge: x.clamp(-1 + 1e-6, 1 - 1e-6); for angles "
                        "torch.atan2(cross_norm, dot)",
                        evidence=evidence(operation, value),
                        severity=level(operation, self.severity),
                        **at(subject, operation),
                    )
                    continue
                if not value.known or value.kind == "number":
                    continue
                hit = [edge for edge in (low, high) if edge is not None and value.reaches(edge)]
                if not hit or (high is not None and (value.low < low - 0.01 or value.high > high + 0.01)):
                    continue
                if operation.no_grad and operation.name in (
                    "acos",
                    "asin",
                    "arccos",
                    "arcsin",
                    "acosh",
                    "arccosh",
                ):
                    continue
                reached = f"it reaches {' and '.join(f'{edge:g}' for edge in hit)}"
            yield self.finding(
                f"{operation.name} of {origin(value)}: {reached} (interval {interval(value)})",
                fix="clamp inside the edge: x.clamp(-1 + 1e-6, 1 - 1e-6); for angles use "
                "torch.atan2(cross_norm, dot)",
                evidence=evidence(operation, value),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _looks_like_cosine(operation: Operation) -> bool:
    """acos of something called a cosine or a dot product, or of a sum of products."""
    if operation.name not in ("acos", "arccos") or operation.no_grad:
        return False
    argument = re.sub(r"^[\w.]*\b(arc|a)cos\(|\)$|\.(arc|a)cos\($", "", operation.text)
    return re.fullmatch(r"[\w.]*(cos|dot|similarit)\w*", argument, re.IGNORECASE) is not None or (
        re.search(r"\*[^()]*\)\.sum\(|einsum|matmul| @ ", argument) is not None
    )
