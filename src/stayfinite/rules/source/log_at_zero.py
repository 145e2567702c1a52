"""SRC001: a logarithm whose argument can be exactly zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile, Value
from stayfinite.rules.source.phrases import at, evidence, just_made, level, origin, unguarded
from stayfinite.rules.source.probabilities import argument_text, probability_by_use


class LogCanReachZero(Rule[SourceFile]):
    """The argument of a logarithm can be exactly zero (or below), as far as the source shows.

    ## What it finds
    log, log2, log10, log1p, logit and xlogy whose argument lies in an interval that includes the edge:
    probabilities and their products, counts, a ReLU, one minus a saturating function, noise that includes
    0. The interval is followed through the function and into functions of the same file; an argument of
    which nothing is known is not reported.

    ## Why it is bad
    log(0) is minus infinity, and its gradient 1/0 is infinite. A value that is positive on paper is often
    exactly 0 in the machine: a softmax underflows at a distance of 104, a float32 sigmoid is exactly 1 from
    17 on, a likelihood of several factors underflows sooner than each.

    ## Example
    `loss = -torch.log(likelihood.sum(1)).mean()` with `likelihood = pi * torch.exp(-0.5 * z ** 2)`

    ## The fix
    Stay in log space: `torch.logsumexp`, `F.log_softmax`, `F.logsigmoid`. For counts add one to each; for
    noise draw `-log` from `torch.empty_like(x).exponential_()`.

    ## The popular fix that does not work
    `torch.log(x + 1e-8)`: in float16 that eps is zero, and elsewhere the samples that are most wrong get a
    gradient that says nothing of how wrong they are.

    ## References
    keras-team/keras#2586, huggingface/trl#1491, perslev/MultiPlanarUNet#24
    """

    code = "SRC001"
    name = "log-can-reach-zero"
    cause = "LOG_DOMAIN"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "log", "log2", "log10", "log1p", "logit", "xlogy"):
            if operation.selected:
                continue
            value = operation.operands[-1] if operation.name == "xlogy" else operation.operands[0]
            if not value.known and operation.name == "log" and probability_by_use(subject, operation):
                name = argument_text(operation.text)
                yield self.finding(
                    f"log of `{name}`, which is used as a probability here and may be exactly 0",
                    fix="take logits: F.log_softmax, F.logsigmoid, "
                    "F.binary_cross_entropy_with_logits; else clamp first",
                    evidence=evidence(operation, value),
                    severity=level(operation, self.severity),
                    **at(subject, operation),
                )
                continue
            if not value.known or value.kind in ("number", "mask") or just_made(value):
                continue
            if _better_told_elsewhere(operation) or _nothing_shows_it(value) or _made_to_be_masked(value):
                continue
            edge = -1.0 if operation.name == "log1p" else 0.0
            reached = value.reaches(edge) or value.below(edge)
            if operation.name == "logit":
                reached = _without_eps(operation) and (reached or value.reaches(1.0))
            if operation.name == "xlogy" and operation.operands[0].made is value.made:
                reached = False  # 0 * log(0) is 0 there
            if not reached:
                continue
            yield self.finding(
                f"{operation.name} of {origin(value)}: the argument can be exactly {edge:g}",
                fix=_stable_form(operation),
                evidence=evidence(operation, value),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _nothing_shows_it(value: Value) -> bool:
    """Bounds that are only formal: a lone square, or a lower end at minus infinity that no layer or noise explains."""
    if value.low == -math.inf:
        return not value.traits & {"network", "noise"}
    return value.has("square") and value.high == math.inf and value.made_by("sum", "mean", depth=4) is None


def _made_to_be_masked(value: Value) -> bool:
    """A triangle of ones: its logarithm, 0 and minus infinity, is the additive mask that is wanted."""
    triangle = value.made is not None and value.made.name in ("tril", "triu")
    return triangle and value.grad is not True and (value.low, value.high) == (0.0, 1.0) and _filled(value)


def _filled(value: Value) -> bool:
    return value.made_by("ones", "ones_like", "new_ones", "full", "full_like", depth=4) is not None


def _without_eps(operation: Operation) -> bool:
    return "eps" not in operation.options and len(operation.operands) < 2


def _better_told_elsewhere(operation: Operation) -> bool:
    """log(softmax(x)) and log(sigmoid(x)) have a rule of their own."""
    made = operation.operands[0].made
    return (
        operation.name in ("log", "log2", "log10")
        and made is not None
        and made.name in ("softmax", "sigmoid")
    )


def _stable_form(operation: Operation) -> str:
    value = operation.operands[-1] if operation.name == "xlogy" else operation.operands[0]
    if value.has("class_counts") or value.has("count"):
        return "add 1 to every count first, or leave absent classes out"
    if value.made_by("exp"):
        return "stay in log space: torch.logsumexp over the exponents (for log1p(-exp(x)): clamp x below 0 first)"
    if value.made_by("softmax"):
        return "compute from F.log_softmax(logits, dim) and torch.logsumexp instead of from probabilities"
    if value.made_by("sigmoid"):
        return "use F.logsigmoid(x) for log(p) and F.logsigmoid(-x) for log(1 - p)"
    if value.made_by("tanh"):
        return "use 2 * (log(2) - x - F.softplus(-2 * x)) for log(1 - tanh(x)**2)"
    if value.made_by("rand", "rand_like"):
        return "draw with torch.empty_like(x).exponential_() instead of -log(rand), or clamp to finfo.tiny"
    return "clamp the argument to a positive eps that exists in the dtype, or compute in log space"
