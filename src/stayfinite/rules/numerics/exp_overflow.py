"""NUM003: an exponential beyond the range of its dtype."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import LARGEST
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import counted, is_given, judged, source_of, span, told

_GIVEN = (
    "these values were given, and no model computed them: check labels and targets where the samples are made "
    "(one of another scale, a placeholder such as 999), and repair or leave out the samples"
)
_HIDDEN = "a wider dtype or a clamp behind it: the step is finite then, and learns from a sample that is out of scale."


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
    exponent must be clamped, before exp. Nor a clamped exponent under a logarithm or in a ratio of exponentials: it is
    finite, and what is beyond the bound has no gradient any more, which `torch.logsumexp` and `torch.softmax` keep.

    ## References
    pyg-team/pytorch_geometric#53, hunglc007/tensorflow-yolov4-tflite#138
    """

    code = "NUM003"
    name = "exp-overflow"
    cause = "EXP_OVERFLOW"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.EXP_OVERFLOW):
            birth, operand = born.birth, born.how.operand
            limit = birth.fact("limit") or log(LARGEST.get(birth.dtype, 3.4e38))
            beyond = "of a magnitude above" if birth.op in ("cosh", "sinh") else "above"
            yield self.finding(
                f"{birth.op} of {counted(born.how.count, 'value')} {beyond} {limit:.4g}, the limit of {birth.dtype}, "
                f"in {source_of(operand)} ({span(operand)})",
                fix=_GIVEN
                if is_given(operand)
                else _fix(birth, operand, subject.narrows if birth == subject.births[0] else ()),
                avoid=_HIDDEN if is_given(operand) else None,
                **told(born, "limit", "beyond"),
            )
        for born in judged(subject, Kind.POWER_OVERFLOW):
            birth = born.birth
            base, exponent = birth.operand("self"), birth.operand("exponent")
            tensors = [o for o in (base, exponent) if o is not None]
            made_of_data = bool(tensors) and all(is_given(o) for o in tensors)
            given = [
                f"{name} {span(o)}" for name, o in (("base", base), ("exponent", exponent)) if o is not None
            ]
            yield self.finding(
                f"{birth.op} of finite numbers went beyond {birth.dtype} "
                f"({'; '.join(given) or span(born.how.operand)})",
                fix=_GIVEN
                if made_of_data
                else "bound the exponent, or work with the logarithm: exponent * log(base)",
                avoid=_HIDDEN if made_of_data else None,
                **told(born, "exponent"),
            )


def _fix(birth: TracedBirth, operand: Operand | None, narrows: tuple[str, ...]) -> str:
    """By what is made of the exponential: where it goes, else as far as its line and its operand show."""
    line = birth.birth.source or ""
    if "log" in narrows:
        return (
            "stay in log space, as its logarithm is taken later (torch.logsumexp, torch.logaddexp, F.softplus); "
            "a bound on the exponent would take the gradient from what is beyond it"
        )
    if "ratio" in narrows:
        return "use torch.softmax, or subtract the maximum (of each row or group) before exp: the ratio cancels it"
    if "var" in line or "std" in line or "sigma" in line:
        return "bound the predicted logarithm before exp, for example log_var.clamp(-10, 10)"
    if operand is not None and operand.numel == 1 and operand.origin == "parameter":
        return f"store the logarithm of the scale in {operand.name or 'it'}, and bound it: x.clamp(max=4.6).exp()"
    if "log" in line or any(name in line for name in (".sum(", ".mean(", "/")):
        return "stay in log space (torch.logsumexp, torch.softmax, F.softplus): they subtract the maximum before exp"
    return "clamp the exponent itself before exp, or use the stable form (F.softplus, torch.softmax, torch.logsumexp)"
