"""SRC007: a power below one of a value that can be zero, where gradients flow."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import (
    at,
    evidence,
    grows_with_gradient,
    just_made,
    level,
    origin,
    taken_out,
    unguarded,
)


class PowerBelowOneAtZero(Rule[SourceFile]):
    """A value that can be exactly zero is raised to a power below one, whose gradient there is infinite.

    ## What it finds
    `x ** p` and `torch.pow(x, p)` with 0 < p < 1 and a base that reaches 0: a sigmoid, a softmax, a product
    of probabilities, a ReLU excepted. For a product of probabilities an exponent whose value is not in the
    source counts as well. A negative exponent of a base that reaches 0 is reported too.

    ## Why it is bad
    d x**0.6 / dx is 0.6 x**-0.4: infinite at 0. A product of two softmaxes underflows to exactly 0 as soon
    as two heads disagree with confidence; the loss stays finite, the gradient does not.

    ## Example
    `loss = -torch.log(((p_s * p_t) ** beta / p_k).sum(-1))` with beta 0.6

    ## The fix
    In log space: `torch.logsumexp(beta * (log_p_s + log_p_t) - log_p_k, -1)`, which is exact. Otherwise
    clamp the base first: `x.clamp_min(1e-6) ** p`.

    ## The popular fix that does not work
    `(x + 1e-12) ** p` only moves the pole: the gradient is then 0.6 * 1e-12**-0.4, about 4e4, for exactly
    the samples that disagree. Lowering the learning rate does nothing: AdamW with a NaN gradient poisons
    the weights at rate 0.

    ## References
    jzi040941/PercepNet#37; stayfinite.ops.beta_mutual_information
    """

    code = "SRC007"
    name = "power-below-one-at-zero"
    cause = "SQRT_POW_GRAD_AT_ZERO"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "pow", operands=2):
            base, exponent = operation.operands[:2]
            if (
                not base.known
                or base.kind == "number"
                or just_made(base)
                or operation.selected
                or base.low < 0
                or not base.reaches(0.0)
            ):
                continue
            number = exponent.number
            if number is not None and not (number < 0 or 0 < number < 1):
                continue
            if number is None and not base.has("probability_product"):
                continue
            if taken_out(subject, operation):
                continue
            if not (grows_with_gradient(operation, base) or (number is not None and number < 0)):
                continue
            shown = (
                f"{number:g}"
                if number is not None
                else f"`{exponent_text(operation.text)}` (which may be below 1)"
            )
            trouble = "the gradient at 0 is infinite"
            if not grows_with_gradient(operation, base):
                trouble = "at 0 it has no value"
            yield self.finding(
                f"power {shown} of {origin(base)}: {trouble}",
                fix="compute in log space (torch.logsumexp of exponent * log x), or clamp the "
                "base above 0 first",
                evidence={**evidence(operation, base), "exponent": number},
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def exponent_text(text: str) -> str:
    """The exponent as it is written."""
    return text.rpartition("**")[2].strip() if "**" in text else text.rpartition(",")[2].strip(" )")
