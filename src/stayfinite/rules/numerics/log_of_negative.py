"""NUM002: the logarithm of a negative number."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import (
    counted,
    is_given,
    judged,
    only_an_error,
    source_of,
    span,
    told,
    told_by_error,
)

_LEARNT = "predict the logarithm itself, or make the input positive by its form: F.softplus(x) + 1e-6"
_GIVEN = (
    "these values were given, and no model computed them: check where the samples are made that sizes, counts and "
    "targets are positive (a box has its corners in order), and repair or leave out the samples that are not"
)
_HIDDEN = "`abs` or `clamp` around it: the step is finite then, and learns from a sample that is wrong."


class LogOfNegative(Rule[FailedStep]):
    """A logarithm was taken of a number below its domain, which is NaN.

    ## What it finds
    log, log2, log10, log1p, xlogy or logit with inputs outside of the domain, counted element by element.

    ## Why it is bad
    The result is NaN at once. The input was meant to be a probability, a ratio or a size; that it is negative is
    an error further up: a difference that rounding made negative, an output layer without softplus, a
    regression that left the range on its own.

    ## Example
    `loss = (torch.log(pred) - torch.log(target)).pow(2).mean()` with a linear output layer

    ## The fix
    Predict the logarithm itself and compare there, or give the output a form that is positive
    (`F.softplus(x) + 1e-6`); for `log(1 - exp(x))` use `torch.log(-torch.expm1(x))` with `x.clamp(max=-1e-6)`.

    ## The popular fix that does not work
    `log(abs(x))` or `log(x.clamp_min(1e-8))`: the loss is finite, but a wrong sign is rewarded or gets no
    gradient at all.

    ## References
    huggingface/trl#1491
    """

    code = "NUM002"
    name = "log-of-negative"
    cause = "LOG_DOMAIN"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.LOG_OF_NEGATIVE):
            operand = born.how.operand
            among = f" among {operand.numel} values" if operand is not None else ""
            yield self.finding(
                f"{behind(born.birth)} of {counted(born.how.count, 'value')} below its domain{among} of "
                f"{source_of(operand)} ({span(operand)})",
                fix=_GIVEN if is_given(operand) else _LEARNT,
                avoid=_HIDDEN if is_given(operand) else None,
                **told(born, "outside", "boundary"),
            )
        failure = only_an_error(subject)
        if failure is not None and "all elements of input should be between 0 and 1" in failure.text:
            yield self.finding(
                "binary_cross_entropy was given numbers outside of 0..1, of which it would take the logarithm",
                fix="pass the raw outputs to F.binary_cross_entropy_with_logits instead",
                **told_by_error(failure),
            )
