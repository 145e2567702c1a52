"""NUM002: the logarithm of a negative number."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import at, behind, births_by_weight, counted, facts, source_of, span, tensors
from stayfinite.rules.numerics.log_of_zero import argument_of_log


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
        for birth, weight in births_by_weight(subject):
            operand = argument_of_log(birth)
            if operand is None:
                continue
            default = 0 if behind(birth) in ("log1p", "logit") else operand.negatives
            outside = int(birth.fact("outside")) if "outside" in birth.facts else default
            if not outside:
                continue
            yield self.finding(
                f"{behind(birth)} of {counted(outside, 'value')} below its domain among {operand.numel} values of "
                f"{source_of(operand)} ({span(operand)})",
                fix="predict the logarithm itself, or make the input positive by its form: F.softplus(x) + 1e-6",
                evidence={"inputs": tensors(operand), **facts(birth, "outside", "boundary")},
                confidence=0.88 * weight,
                **at(birth),
            )
        failure, first = subject.failure, subject.birth
        raised = first is None or first.transition == "raised"
        if (
            failure is not None
            and raised
            and "all elements of input should be between 0 and 1" in failure.text
        ):
            yield self.finding(
                "binary_cross_entropy was given numbers outside of 0..1, of which it would take the logarithm",
                fix="pass the raw outputs to F.binary_cross_entropy_with_logits instead",
                evidence={"error": failure.text},
                confidence=0.8,
                file=failure.place.file,
                line=failure.place.line,
            )
