"""NUM015: a predicted scale or variance that is zero, negative or collapsing."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import (
    counted,
    first_line,
    is_given,
    judged,
    only_an_error,
    source_of,
    span,
    told,
    told_by_error,
)

_COMPLAINTS = (
    "expects std >= 0",
    "expects all elements of std >= 0",
    "var has negative entry",
    "to satisfy the constraint",
    "sum of probabilities <= 0",
    "Invalid parameters: expects",
    "Expected p_in >= 0",
    "contains either `inf`, `nan` or element < 0",
)


_GIVEN = (
    "these values were given: check counts, labels and scales where the samples are made (a placeholder such as -1 or "
    "-999), and repair or leave out the samples"
)
_HIDDEN = "a floor or `abs` around it: the step is finite then, and learns from a sample that is wrong."


class ScaleNotPositive(Rule[FailedStep]):
    """A scale or variance that the model predicts is zero or negative, or has shrunk until its quotient overflows.

    ## What it finds
    A density computed with a scale that is not positive: a division by (and logarithm of) the same predicted
    tensor, gamma functions at zero, and the errors that torch.distributions raises for finite parameters.

    ## Why it is bad
    A likelihood rewards a smaller variance wherever the fit is perfect, without end: the scale runs to 0, and
    then log(0) and 0/0 come in the same line. It is the loss that asks for it, so it comes back at any rate.

    ## Example
    `0.5 * torch.log(s) + 0.5 * (y - mu) ** 2 / s` with `s = torch.sigmoid(h)` and constant targets

    ## The fix
    Give the scale a floor (`softplus(h) + 1e-3`, `F.gaussian_nll_loss` with its eps), or predict a log-scale and
    bound it: `log_std.clamp(-5, 2)`.

    ## The popular fix that does not work
    Gradient clipping and a smaller learning rate delay it. `validate_args=False` removes the message, not the zero.

    ## References
    motokimura/PyTorch_Gaussian_YOLOv3#23
    """

    code = "NUM015"
    name = "scale-not-positive"
    cause = "DIST_PARAM"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.SCALE_NOT_POSITIVE):
            scale = born.how.operand
            zeros, negatives = (scale.summary.zeros, scale.negatives) if scale is not None else (0, 0)
            what = (
                f"{counted(zeros, 'zero')} and {counted(negatives, 'negative value')} in {source_of(scale)}"
            )
            if is_given(scale):
                yield self.finding(
                    f"{behind(born.birth)} of values that are not positive and that no model computed: {what} "
                    f"({span(scale)})",
                    fix=_GIVEN,
                    avoid=_HIDDEN,
                    cause="LABEL_INVALID",
                    **told(born, "zero_divisors", "divisor_is", "boundary"),
                )
                continue
            yield self.finding(
                f"{behind(born.birth)} with a scale that is not positive: {what} ({span(scale)})",
                fix="give the scale a floor (F.softplus(h) + 1e-3) or bound its logarithm: log_std.clamp(-5, 2)",
                **told(born, "zero_divisors", "divisor_is", "boundary"),
            )
        failure = only_an_error(subject)
        if failure is not None and any(text in failure.text for text in _COMPLAINTS):
            # An error that shows NaN among its values has another cause; its own wording does not count.
            if "nan" in failure.text.replace("`nan`", "").lower():
                return
            yield self.finding(
                f"a parameter of a distribution is not legal: {first_line(failure)}",
                fix="give the parameter a legal form (F.softplus(h) + 1e-3 for a scale, logits for probabilities)",
                **told_by_error(failure),
            )
