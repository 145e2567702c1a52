"""SRC005: a square root whose argument can be zero, where gradients flow."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import (
    at,
    edit,
    evidence,
    grows_with_gradient,
    just_made,
    level,
    origin,
    taken_out,
    unguarded,
)


class RootGradientAtZero(Rule[SourceFile]):
    """The argument of a square root can be exactly zero, where the root's gradient is infinite.

    ## What it finds
    sqrt of a variance, of a mean or sum of squares, of a saturating or clamped value, of a parameter that
    starts at 0; rsqrt of anything that reaches 0. Silent under `no_grad`, for constants, behind a test of
    the variable, where an eps stands inside the root, and behind a ReLU (its backward swallows the NaN).

    ## Why it is bad
    d sqrt(x)/dx is 1 / (2 sqrt(x)): infinite at 0. The loss is finite, the gradient is Inf or NaN (Inf
    times 0), and one step later the weights are NaN.

    ## Example
    `loss = F.relu(1 - z.var(0).sqrt()).mean()`

    ## The fix
    Put the eps inside: `(x.var(0) + 1e-6).sqrt()`, or use `x.std(0)` and `torch.linalg.vector_norm`, whose
    gradient at 0 is defined as 0. `--fix` rewrites `x.var(...).sqrt()` to `x.std(...)`.

    ## The popular fix that does not work
    An eps outside, `x.sqrt() + 1e-8`: the value is fine, the gradient is still infinite.

    ## References
    pytorch/pytorch#4320; facebookresearch/vicreg (sqrt(var + 1e-4))
    """

    code = "SRC005"
    name = "root-can-reach-zero"
    cause = "SQRT_POW_GRAD_AT_ZERO"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "sqrt", "rsqrt"):
            value = operation.operands[0]
            if not value.known or operation.selected or just_made(value):
                continue
            starts = value.has("starts_at_zero")
            if not starts and (value.low < 0 or not value.reaches(0.0)):
                continue
            if operation.name == "sqrt" and (
                not grows_with_gradient(operation, value) or taken_out(subject, operation)
            ):
                continue
            if operation.name == "rsqrt" and value.kind == "number":
                continue
            yield self.finding(
                f"{operation.name} of {origin(value)}: "
                + ("the gradient at 0 is infinite" if operation.name == "sqrt" else "1/sqrt(0) is infinite"),
                fix="add the eps inside the root, or use x.std() / torch.linalg.vector_norm, "
                "whose gradient at 0 is 0",
                evidence={**evidence(operation, value), **_edit(operation)},
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _edit(operation: Operation) -> dict[str, object]:
    made = operation.operands[0].made
    if (
        operation.name != "sqrt"
        or made is None
        or made.name != "var"
        or made.style != "method"
        or not made.text
    ):
        return {}
    if operation.text not in (f"{made.text}.sqrt()", f"torch.sqrt({made.text})"):
        return {}
    head, _, tail = made.text.rpartition(".var(")
    return edit(operation, f"{head}.std({tail}")
