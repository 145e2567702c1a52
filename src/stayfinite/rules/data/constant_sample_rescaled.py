"""DAT012: a constant sample divided by its own range or deviation."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import (
    DIVISIONS,
    at,
    births_by_weight,
    by_autograd,
    counted,
    divisor_of,
    facts,
    is_energy,
    source_of,
    span,
    tensors,
)

_EXTREMES = ("amax", "max", "amin", "min", "aminmax", "quantile", "kthvalue", "topk", "sort")
_SUMS = ("sum", "count_nonzero", "bincount")
_SPREADS = ("std", "var", "std_mean", "var_mean")


class ConstantSampleRescaled(Rule[FailedStep]):
    """A constant sample (or feature) was divided by its own range, maximum or standard deviation, which is zero.

    ## What it finds
    A division by zero whose divisor is `max - min`, a maximum, a standard deviation, an energy (a sum of squares), or
    a table of such statistics, of values that nothing is learnt through.

    ## Why it is bad
    0/0 makes the whole sample NaN. Black frames, silent clips and constant columns are ordinary data.

    ## Example
    `(img - img.min()) / (img.max() - img.min())` for an all-black image

    ## The fix
    Floor the divisor, `(img.max() - img.min()).clamp_min(1e-6)`: the numerator is 0, so the result is 0.

    ## The popular fix that does not work
    Dropping batches that hold NaN: it drops the good samples beside the constant one, every epoch.

    ## References
    albumentations-team/albumentations#1742
    """

    code = "DAT012"
    name = "constant-sample-rescaled"
    cause = "PREPROC_ZERO_RANGE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            bad, columns = birth.fact("bad_columns"), birth.fact("columns")
            if bad and birth.fact("rescaled_columns") == columns - bad:
                yield self.finding(
                    f"{counted(int(bad), 'column')} of a table of {int(columns)} NaN throughout, while the others have "
                    "been rescaled: a constant column, divided by its own spread before it came here",
                    fix="drop constant columns, or use a spread of 1 where it is 0 (sigma[sigma == 0] = 1)",
                    evidence={**facts(birth, "bad_columns", "rescaled_columns", "columns")},
                    confidence=0.98 * weight,
                    **at(birth),
                )
            if birth.op not in DIVISIONS or by_autograd(birth) or birth.phase == "optimizer":
                continue
            divisor = divisor_of(birth)
            if divisor is None or not divisor.summary.zeros:
                continue
            judged = _statistic(birth, divisor)
            if judged is None:
                continue
            kind, certain = judged
            yield self.finding(
                f"division by {kind} that is 0 for {counted(divisor.summary.zeros, 'value')}: {source_of(divisor)} "
                f"({span(divisor)})",
                fix="floor the divisor with .clamp_min(1e-6): a constant sample then becomes 0 instead of NaN",
                evidence={
                    "inputs": tensors(*birth.operands),
                    "samples": list(birth.birth.samples),
                    **facts(birth, "zero_divisors", "zero_over_zero", "divisor_is"),
                },
                confidence=certain * weight,
                **at(birth),
            )


def _of_data(birth: TracedBirth, divisor: Operand) -> bool:
    return not divisor.requires_grad and not any(operand.requires_grad for operand in birth.operands)


def _statistic(birth: TracedBirth, divisor: Operand) -> tuple[str, float] | None:
    """What kind of statistic the divisor is, and how sure it is that a constant sample made it zero."""
    said = birth.facts.get("divisor_is")
    total = divisor.made_by(*_SUMS, within=1)
    if total is not None:  # what was sorted or compared to choose the summands says nothing about the sum
        return ("an energy", 0.9) if is_energy(divisor) and _of_data(birth, divisor) else None
    if said == "range" or (divisor.made_by("sub", within=3) and divisor.made_by(*_EXTREMES, within=5)):
        return "a range", 0.8 if divisor.requires_grad else 0.96
    if said == "std" or divisor.made_by(*_SPREADS, within=4):
        return "a standard deviation", 0.8 if divisor.requires_grad else 0.93
    if said == "max" or divisor.made_by(*_EXTREMES, within=3):
        return "a maximum", 0.75 if divisor.requires_grad else 0.9
    if said == "mean" or divisor.made_by("mean", within=3):
        return "a mean", 0.5 if divisor.requires_grad else 0.65
    numerator = birth.operand("self")
    stored = divisor.origin in ("constant", "batch", "buffer", "outside") and not divisor.is_integer
    stored = stored and birth.op == "div"  # 1 / frequency is no rescaling
    if stored and numerator is not None and not numerator.requires_grad and birth.fact("zero_over_zero"):
        return "a stored statistic", 0.7
    return ("a stored statistic", 0.55) if stored and divisor.numel > 1 else None
