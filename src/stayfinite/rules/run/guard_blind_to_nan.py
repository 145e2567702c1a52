"""RUN012: a check of the script that NaN passes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import Comparison

_ORDER = ("gt", "ge", "lt", "le", "greater", "less", ">", "<", ">=", "<=")


class GuardBlindToNan(Rule[FailedStep]):
    """The script compared the bad number, and the comparison could not notice it.

    ## What it finds
    `loss > limit` and similar comparisons of a NaN, which are False; `loss == float("nan")`, which is always False;
    `isnan` of an infinity; in a step whose bad value then went on into the weights.

    ## Why it is bad
    The author thinks that bad steps are skipped. Every comparison with NaN is False, so exactly the worst steps
    pass.

    ## Example
    `if loss > 100: continue`

    ## The fix
    Ask for what is good: `if not torch.isfinite(loss) or loss > 100: continue`.

    ## The popular fix that does not work
    Another threshold: NaN is not larger than any.

    ## References
    facebookresearch/metaseq#521
    """

    code = "RUN012"
    name = "guard-blind-to-nan"
    cause = "BLIND_GUARD"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if subject.handled or not (subject.births or subject.state):
            return
        for comparison in subject.comparisons:
            why = _blind(comparison)
            if why is None:
                continue
            yield self.finding(
                f"line {comparison.place.line} checks the value and cannot see it: {why}",
                fix="write the check as: if not torch.isfinite(loss) or loss > limit",
                evidence={
                    "op": comparison.op,
                    "value": comparison.value,
                    "threshold": comparison.threshold,
                    "result": comparison.result,
                },
                depth=Depth.CONSEQUENCE,
                place=comparison.place,
            )


def _blind(comparison: Comparison) -> str | None:
    if comparison.result:
        return None
    if math.isnan(comparison.value):
        if comparison.op in _ORDER:
            limit = f"{comparison.threshold:g}" if comparison.threshold is not None else "a number"
            return f"NaN {comparison.op} {limit} is False"
        if comparison.op == "eq" and comparison.threshold is not None and math.isnan(comparison.threshold):
            return "NaN == NaN is False"
        return None
    return f"isnan({comparison.value:g}) is False" if comparison.op == "isnan" else None
