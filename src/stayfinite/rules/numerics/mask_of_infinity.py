"""NUM010: an infinite mask that was multiplied, or has the wrong sign."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import TracedBirth
from stayfinite.rules.evidence import (
    at,
    behind,
    births_by_weight,
    by_autograd,
    looks_like_mask,
    reaches,
    tensors,
)


class MaskOfInfinity(Rule[FailedStep]):
    """An attention mask of infinities was multiplied by zero, subtracted from itself, or has the wrong sign.

    ## What it finds
    `mask * -inf`, where the zeros of the mask become NaN; -inf minus -inf when masks are combined; and +inf that
    was written into scores before a softmax.

    ## Why it is bad
    0 * inf and inf - inf are NaN, and the softmax of a row with +inf is inf/inf. All positions are hit, the valid
    ones first.

    ## Example
    `scores + (1 - mask) * float("-inf")`

    ## The fix
    Fill instead of multiplying: `scores.masked_fill(mask == 0, float("-inf"))`, with at least one valid key a row.

    ## The popular fix that does not work
    `nan_to_num` after the softmax: masked and valid positions then get the same weight 0.

    ## References
    pytorch/pytorch#41508, NVIDIA-NeMo/Automodel#2658
    """

    code = "NUM010"
    name = "mask-of-infinity"
    cause = "MASK_VALUE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if by_autograd(birth):
                continue
            message = _mistake(birth)
            if message is None:
                continue
            attention = reaches(subject, "softmax", "logsumexp", "attention")
            yield self.finding(
                message,
                fix="fill instead: scores.masked_fill(~allow, float('-inf')), allow a boolean mask with one True a row",
                evidence={"inputs": tensors(*birth.operands), "op": behind(birth)},
                confidence=(0.93 if attention else 0.5) * weight,
                **at(birth),
            )


def _mistake(birth: TracedBirth) -> str | None:
    infinite_scalar = any(isinstance(v, float) and math.isinf(v) for v in birth.scalars.values())
    if birth.op == "mul" and birth.birth.nan and (birth.fact("zero_times_bad") or infinite_scalar):
        mask_times_mask = len(birth.operands) == 2 and any(o.neginf for o in birth.operands) and any(
            looks_like_mask(o) for o in birth.operands
        )  # fmt: skip
        if infinite_scalar or (mask_times_mask and all(o.origin != "activation" for o in birth.operands)):
            return f"a mask was multiplied by infinity: {birth.birth.nan} zeros became NaN"
    if birth.op in ("softmax", "log_softmax") and birth.transition == "inf->nan":
        scores = birth.operands[0] if birth.operands else None
        if scores is not None and scores.posinf and not birth.fact("fully_masked_rows"):
            return f"{birth.op} of scores with {scores.posinf} entries of +inf: a mask with the wrong sign"
    if birth.op in ("add", "sub") and birth.fact("inf_minus_inf") and any(o.neginf for o in birth.operands):
        return f"masks of infinity were combined: {int(birth.fact('inf_minus_inf'))} times inf - inf"
    return None
