"""NUM003: an exponential beyond the range of its dtype."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import (
    LARGEST,
    SANITISERS,
    at,
    births_by_weight,
    by_autograd,
    counted,
    facts,
    source_of,
    span,
    tensors,
)

_EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh")


class ExpOverflow(Rule[FailedStep]):
    """An exponential (or a power with a large exponent) went beyond the largest number of its dtype.

    ## What it finds
    exp, exp2, expm1, sinh, cosh with finite inputs above the limit (88.7 in float32 and bfloat16, 11.09 in
    float16 for exp), and powers of finite numbers that overflow, in a place where the infinity reaches the loss
    or a gradient.

    ## Why it is bad
    The infinity may be invisible in the forward pass (1/inf is 0, tanh(inf) is 1) and come back in the gradient
    as 0 * inf = NaN. Two infinities in a quotient are NaN at once.

    ## Example
    `mish = x * torch.tanh(torch.log(1 + torch.exp(x)))` with one activation of 95

    ## The fix
    Use the function that does not overflow: `F.softplus`, `F.mish`, `torch.softmax`, `torch.logsumexp`. In
    grouped softmax subtract the maximum of the group first. Bound a predicted log-variance before exp.

    ## The popular fix that does not work
    `torch.exp(x).clamp(max=1e6)`: the gradient of the clamp is 0, times the infinite gradient of exp is NaN. The
    exponent must be clamped, before exp.

    ## References
    pyg-team/pytorch_geometric#53, hunglc007/tensorflow-yolov4-tflite#138
    """

    code = "NUM003"
    name = "exp-overflow"
    cause = "EXP_OVERFLOW"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if by_autograd(birth) or birth.transition != "finite->inf":
                continue
            if birth.op in _EXPONENTIALS:
                operand = birth.operand("self", "input") or next(iter(birth.operands), None)
                # exp has no other way to make Inf of finite numbers; the fact says how many went over.
                hidden = any(producer.name in SANITISERS for producer in birth.hidden_by)
                yield self.finding(
                    f"{birth.op} of {counted(birth.fact('beyond') or birth.birth.inf, 'value')} above "
                    f"{_limit(birth):.4g}, the limit of {birth.dtype}, in {source_of(operand)} ({span(operand)})",
                    fix=_fix(operand),
                    evidence={"inputs": tensors(operand), **facts(birth, "limit", "beyond")},
                    confidence=(0.75 if hidden else 0.93) * weight,
                    **at(birth),
                )
            elif birth.op in ("pow", "float_power", "cumprod", "prod") and birth.dtype != "float16":
                exponent = birth.facts.get("exponent", birth.scalars.get("exponent"))
                large = not isinstance(exponent, (int, float)) or abs(exponent) > 8
                if birth.fact("zero_base") or not large:
                    continue
                yield self.finding(
                    f"{birth.op} of finite numbers went beyond {birth.dtype}, from inputs of "
                    f"{span(next(iter(birth.operands), None))}",
                    fix="work with the logarithm: exponent * log(base), and exponentiate only differences",
                    evidence={"inputs": tensors(*birth.operands), **facts(birth, "exponent")},
                    confidence=(0.85 if not isinstance(exponent, (int, float)) else 0.75) * weight,
                    **at(birth),
                )


def _limit(birth: TracedBirth) -> float:
    return birth.fact("limit") or log(LARGEST.get(birth.dtype, 3.4e38))


def _fix(operand: Operand | None) -> str:
    if operand is not None and operand.made_by("neg", within=2):
        return "bound the predicted log-variance before exp, for example log_var.clamp(-10, 10)"
    return (
        "use the stable form (F.softplus, torch.softmax, torch.logsumexp), subtract the maximum before exp, or clamp "
        "the exponent itself before exp"
    )
