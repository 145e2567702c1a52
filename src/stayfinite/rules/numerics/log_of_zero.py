"""NUM001: the logarithm of zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import SMALLEST, behind, rounded_maker
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, Producer
from stayfinite.rules.evidence import counted, is_given, judged, source_of, span, told

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


_WEIGHTED = (
    "let p * log(p) be 0 where p is 0: torch.xlogy(p, p), or F.kl_div(log_q, p), which does that; it is given, "
    "so nothing has to be learnt there"
)
_GIVEN = (
    "these values were given, and no model computed them: put a floor under them that healthy ones never reach "
    "(x.clamp_min(1e-6); for a distribution on [0, 1] x.clamp(1e-6, 1 - 1e-6)), or leave the samples out that are 0"
)
_NO_SIZE = (
    "where it is a size (a box without width, a distance of nothing), no model computed it: check sizes where the "
    "samples are made, and repair or leave out those that are 0"
)
_NOTHING_LEARNT = (
    "a floor that rounds to 0 in the dtype (1e-8 in float16), or lower rates and clipping: the value that was given "
    "is 0 in every step that reads it."
)
_SPREAD = (
    "this is the spread of something that does not vary in this batch (a constant column, a flag that is never set). "
    "Leave it as large as it is, torch.where(std > 0, std, 1.0), or leave the column out; a tiny floor enlarges "
    "whatever comes to vary there by as much"
)
_COMPLEX = (
    "the logarithm of a complex 0 has no value and no slope: add a small number first, torch.log(z + 1e-6), or take "
    "the logarithm of the magnitude with a floor and the phase where there is a magnitude"
)
_MAGNITUDE = (
    "this is a magnitude that is exactly 0 for some (a silent channel, a feature that is off), and no probability: "
    "give it a floor in its own unit, below what healthy ones reach (x.clamp_min(1e-6)), or leave out what is 0"
)
_SMOOTH = ("softmax", "sigmoid", "exp", "pow", "prod")
_LARGEST_PROBABILITY = 1.5  # a density may be larger, and its logarithm has a form of its own further up
_SPREADS = ("std", "var", "std_mean", "var_mean")
_PRODUCT_WITHIN = 3  # ops behind the logarithm: t * (log(t) - log_q)


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
        for born in judged(subject, Kind.LOG_OF_ZERO):
            op, operand = behind(born.birth), born.how.operand
            edge = {"log1p": "value of -1", "logit": "value of 0 or 1"}.get(op, "zero")
            smallest = (operand.smallest_positive if operand is not None else None) or 0.0
            what = counted(born.how.count, edge) if born.how.count else f"values down to {smallest:.2g}"
            among = f" among {operand.numel} values" if operand is not None else ""
            yield self.finding(
                f"{op} of {what}{among} of {source_of(operand)} ({span(operand)})",
                fix=_WEIGHTED if _is_weight(subject, operand) else _stable_form(operand),
                avoid=_NOTHING_LEARNT if is_given(operand) else None,
                **told(born, "boundary", "outside"),
            )
        for born in judged(subject, Kind.RATIO_INTO_LOG):
            divisor = born.how.operand
            total = f" of {divisor.numel}" if divisor is not None else ""
            yield self.finding(
                f"a ratio of probabilities goes into a logarithm, and {counted(born.how.count, 'divisor')}{total} is 0 "
                f"({span(divisor)})",
                fix="subtract logarithms instead: F.kl_div(log_q, log_p, log_target=True), or log_p - log_q",
                **told(born, "zero_divisors"),
            )


def _is_weight(step: FailedStep, operand: Operand | None) -> bool:
    """Given probabilities have zeros, and a product with their logarithm makes NaN: by no other factor than 0."""
    after = [one.op.removeprefix("aten.").partition(".")[0] for one in step.path[1 : 1 + _PRODUCT_WITHIN]]
    summary = step.sink.summary if step.sink is not None else None
    if operand is None or operand.learnt or "mul" not in after or summary is None or not summary.nan:
        return False
    low, high = operand.summary.min, operand.summary.max
    return low is not None and high is not None and low >= 0.0 and high <= 1.0


def _maker(operand: Operand | None) -> Producer | None:
    """The op whose result was rounded to 0. A tanh further up than in 1 - tanh(x)**2 is a layer's activation."""
    made = operand.made_by(*_STABLE, within=6) if operand is not None else None
    if operand is None or made is None:
        return None
    if made.least is not None and made.least > SMALLEST.get(operand.dtype, 0.0):
        return None  # it put out no 0, and none that a narrower dtype rounded to 0
    return None if made.name == "tanh" and made.distance > 3 else made


def _stable_form(operand: Operand | None) -> str:
    made = _maker(operand)
    if operand is not None and made is not None:
        product = operand.made_by("mul", within=made.distance - 1)
        if product is not None and len(product.inputs) > 1:  # the zeros may be those of the other factor
            where = f" (line {product.line})" if product.line else ""
            if "bool" in product.inputs:
                return (
                    f"these zeros are those of the mask in the product{where}: put a floor under it before the "
                    "logarithm (x.clamp_min(1e-30)), or mask behind the logarithm, and leave out samples of which the "
                    "mask leaves nothing"
                )
            return (
                f"if the other factor of the product{where} is a mask, leave out the samples it leaves nothing of; "
                f"if {made.name} itself gave 0, {_STABLE[made.name]}"
            )
        return _STABLE[made.name]
    quotient = operand.made_by("div", within=2) if operand is not None else None
    if quotient is not None and len(quotient.inputs) > 1:
        where = f" (line {quotient.line})" if quotient.line else ""
        return (
            f"the numerator of the division{where} is 0 there: where it is a count or a share that is also the factor "
            "of this logarithm, torch.xlogy(y, y / mu) is 0 with it; "
            + (
                _NO_SIZE
                if is_given(operand)
                else "elsewhere put a floor under it that healthy ones never reach"
            )
        )
    if operand is not None and operand.dtype.startswith("complex"):
        return _COMPLEX
    if operand is not None and not operand.learnt:
        return _SPREAD if operand.made_by(*_SPREADS, within=3) is not None else _GIVEN
    rounded = rounded_maker(operand, *_SMOOTH, within=12) if operand is not None else None
    if operand is not None and rounded is None and (operand.absmax or 0.0) > _LARGEST_PROBABILITY:
        return _MAGNITUDE
    return (
        "compute the logarithm in a form that cannot see 0 (log_softmax, logsigmoid, logsumexp), in float32"
    )
