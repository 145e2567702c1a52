"""NUM019: an inverse function at the edge of its domain."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import counted, judged, source_of, span, told

_BETWEEN = "clamp strictly inside the domain: x.clamp(-1 + 1e-6, 1 - 1e-6)"
_FIXES = {
    "acos": f"{_BETWEEN}, or use atan2 for the angle",
    "asin": f"{_BETWEEN}, or use atan2 for the angle",
    "acosh": "clamp strictly inside the domain: x.clamp(min=1 + 1e-6)",
    "special_ndtri": "clamp strictly inside the domain: p.clamp(1e-6, 1 - 1e-6)",
    "atan2": "leave out what is at the origin, where no angle is defined, before the angle is taken",
    "angle": "leave out what is at the origin, where no angle is defined, before the angle is taken",
}


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
        for born in judged(subject, Kind.INVERSE_AT_EDGE):
            how = born.how
            yield self.finding(
                f"{behind(born.birth)} of {counted(how.count, 'value')} {how.word} in {source_of(how.operand)} "
                f"({span(how.operand)})"
                + (": its gradient is infinite there" if born.birth.phase == "backward" else ""),
                fix=_FIXES.get(behind(born.birth).replace("arc", "a"), _BETWEEN),
                **told(born, "boundary", "outside"),
            )
