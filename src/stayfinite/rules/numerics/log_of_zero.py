"""NUM001: the logarithm of zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import (
    at,
    behind,
    births_by_weight,
    by_autograd,
    counted,
    divisor_of,
    facts,
    reaches,
    source_of,
    span,
    tensors,
)

LOGARITHMS = ("log", "log2", "log10", "log1p", "xlogy", "logit", "xlog1py", "special_xlog1py", "special_entr")
_STABLE = {
    "softmax": "use F.log_softmax(logits, dim) instead of log(softmax(logits))",
    "sigmoid": "use F.logsigmoid(x) (and F.logsigmoid(-x) for log(1 - p)), or F.binary_cross_entropy_with_logits",
    "exp": "stay in log space: torch.logsumexp over the exponents instead of log(sum(exp))",
    "tanh": "use 2 * (log(2) - x - F.softplus(-2 * x)) for log(1 - tanh(x)**2)",
    "erf": "use torch.special.log_ndtr instead of the logarithm of a cumulative probability",
    "uniform": "draw noise that cannot be 0: -log of an exponential sample, or u.clamp_min(finfo.tiny)",
    "rand": "draw noise that cannot be 0: -log of an exponential sample, or u.clamp_min(finfo.tiny)",
    "bincount": "smooth the counts (add 1 to each) or leave absent classes out",
    "histc": "smooth the counts (add 1 to each) or leave absent classes out",
}


class LogOfZero(Rule[FailedStep]):
    """A logarithm was taken of exactly zero, which is minus infinity.

    ## What it finds
    log, log2, log10, log1p, xlogy or logit whose input lies exactly on the edge of the domain (0, or -1 for
    log1p), and the gradient of a logarithm whose input is so small that 1/x overflows.

    ## Why it is bad
    The loss is infinite, and the gradient 1/0 times whatever comes from above is infinite or NaN. A probability
    that is positive on paper is often exactly 0 in the machine: a softmax underflows at a distance of 104, a
    float16 sigmoid is exactly 1 from about 8 on, a product of likelihoods underflows sooner than its factors.

    ## Example
    `loss = -torch.log(torch.softmax(logits, -1)).gather(-1, y)`

    ## The fix
    Compute the logarithm directly: `F.log_softmax`, `F.logsigmoid`, `torch.logsumexp`, the losses that take
    logits. For counts and frequencies add one to each count first.

    ## The popular fix that does not work
    `log(p + 1e-8)`: in float16 that eps is zero, and where it is not, the gradient of a sample with p = 0 is
    cut to nearly nothing, so exactly the samples that are wrong most are not learnt from.

    ## References
    pytorch/pytorch#40497, keras-team/keras#2586, huggingface/trl#1491
    """

    code = "NUM001"
    name = "log-of-zero"
    cause = "LOG_DOMAIN"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            operand = argument_of_log(birth)
            if operand is None:
                yield from self._ratio(subject, birth, weight)
                continue
            zeros = on_the_edge(birth, operand)
            tiny = birth.phase == "backward" and 0 < (operand.smallest_positive or 1.0) < 1e-37
            if not zeros and not tiny:
                continue
            edge = {"log1p": "value of -1", "logit": "value of 0 or 1"}.get(behind(birth), "zero")
            what = counted(zeros, edge) if zeros else f"values down to {operand.smallest_positive:.2g}"
            yield self.finding(
                f"{behind(birth)} of {what} among {operand.numel} values of {source_of(operand)} ({span(operand)})",
                fix=_stable_form(operand),
                evidence={"inputs": tensors(operand), **facts(birth, "boundary", "outside")},
                confidence=0.9 * weight,
                **at(birth),
            )

    def _ratio(self, step: FailedStep, birth: TracedBirth, weight: float) -> Iterator[Finding]:
        """log(p / q), where the quotient is already infinite."""
        divisor = divisor_of(birth) if birth.op == "div" and not by_autograd(birth) else None
        if divisor is None or not divisor.summary.zeros or not reaches(step, "log"):
            return
        if divisor.made_by("softmax", "sigmoid", "exp", within=3) is None:
            return
        yield self.finding(
            f"a ratio of probabilities goes into a logarithm, and {counted(divisor.summary.zeros, 'divisor')} of "
            f"{divisor.numel} is 0 ({span(divisor)})",
            fix="subtract logarithms instead: F.kl_div(log_q, log_p, log_target=True), or log_p - log_q",
            evidence={"inputs": tensors(*birth.operands), **facts(birth, "zero_divisors")},
            confidence=0.86 * weight,
            **at(birth),
        )


def argument_of_log(birth: TracedBirth) -> Operand | None:
    """The tensor whose logarithm is taken; None when the birth is no logarithm."""
    op = behind(birth)
    if op not in LOGARITHMS:
        return None
    names = ("other",) if op in ("xlogy", "xlog1py", "special_xlog1py") else ("self", "input")
    saved = birth.saved_tensor(*names) if birth.phase == "backward" else None
    return saved or birth.operand(*names) or (birth.operands[-1] if birth.operands else None)


def on_the_edge(birth: TracedBirth, operand: Operand) -> int:
    """How many inputs lie exactly on the edge of the domain."""
    if "boundary" in birth.facts:
        return int(birth.fact("boundary"))
    return 0 if behind(birth) in ("log1p", "logit") else operand.summary.zeros


def _stable_form(operand: Operand) -> str:
    made = operand.made_by(*_STABLE, within=6)
    if made is not None:
        return _STABLE[made.name]
    return (
        "compute the logarithm in a form that cannot see 0 (log_softmax, logsigmoid, logsumexp), in float32"
    )
