"""NUM019: an inverse function at the edge of its domain."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import at, behind, births_by_weight, counted, facts, source_of, span, tensors

_INVERSES = (
    "acos",
    "asin",
    "atanh",
    "acosh",
    "erfinv",
    "special_ndtri",
    "arccos",
    "arcsin",
    "arctanh",
    "logit",
)
_ANGLES = ("atan2", "angle")


class InverseFunctionAtEdge(Rule[FailedStep]):
    """An inverse function (acos, asin, atanh, erfinv, atan2) was used at the edge of its domain or beyond.

    ## What it finds
    Forward values that are infinite or NaN at or outside of the edge (+-1), gradients that are infinite exactly
    at the edge although the forward value is fine, and atan2 or angle at the origin.

    ## Why it is bad
    The slope of acos at 1 is infinite; atanh is infinite itself. A cosine of two equal vectors is 1, or
    1.0000001 by rounding; a clipped action is exactly 1. Such values are common, not rare.

    ## Example
    `u = torch.atanh(action)` for a demonstration clipped to 1.0

    ## The fix
    Clamp strictly inside, `x.clamp(-1 + 1e-6, 1 - 1e-6)`; for angles use
    `torch.atan2(cross.norm(dim=-1), dot)` with a guard at the origin; keep the value before tanh and use it.

    ## The popular fix that does not work
    `clamp(-1, 1)`: the value is legal then, the slope is still infinite.

    ## References
    rlworkgroup/garage#2129, pytorch/pytorch#8069
    """

    code = "NUM019"
    name = "inverse-function-at-edge"
    cause = "INVTRIG_BOUNDARY"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            op = behind(birth)
            if op in _INVERSES:
                operand = birth.saved_tensor("self", "input") or birth.operand("self", "input")
                count, where = _on_or_over_the_edge(birth, operand)
                if not count:
                    continue
                certain = 0.55 if op == "logit" else 0.95
            elif op in _ANGLES and birth.phase == "backward":
                operand = birth.saved_tensor("self", "input") or next(iter(birth.saved), None)
                near = operand is not None and (operand.smallest_positive or 1.0) < 1e-8
                count, where = (
                    (operand.summary.zeros or int(near) if operand is not None else 0),
                    "at the origin",
                )
                if not count:
                    continue
                certain = 0.93
            else:
                continue
            yield self.finding(
                f"{op} of {counted(count, 'value')} {where} in {source_of(operand)} ({span(operand)})"
                + (": its gradient is infinite there" if birth.phase == "backward" else ""),
                fix="clamp strictly inside the domain, x.clamp(-1 + 1e-6, 1 - 1e-6), or use atan2 for the angle",
                evidence={"inputs": tensors(operand), **facts(birth, "boundary", "outside")},
                confidence=certain * weight,
                **at(birth),
            )


def _on_or_over_the_edge(birth: TracedBirth, operand: Operand | None) -> tuple[int, str]:
    boundary, outside = int(birth.fact("boundary")), int(birth.fact("outside"))
    if outside:
        return outside + boundary, "outside of its domain"
    if boundary:
        return boundary, "on the edge of its domain"
    if operand is not None and (operand.absmax or 0.0) >= 1.0:
        return birth.birth.nan + birth.birth.inf, "on the edge of its domain"
    return 0, ""
