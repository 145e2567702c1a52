"""SRC043: an exponential of what a layer gives, with nothing that bounds it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence, level, unguarded


class ExpOfRawOutput(Rule[SourceFile]):
    """An exponential is taken of a layer's raw output, with nothing that bounds it.

    ## What it finds
    exp of the output of a linear layer or convolution (also scaled by a constant) without a clamp, tanh or
    maximum subtracted, where a gradient flows. Hand-written softmaxes and softpluses have a rule of their
    own.

    ## Why it is bad
    A log-variance of 89 is all it takes in float32, 12 in float16. Networks reach it when a batch is far
    from what they saw; the loss is infinite and the gradient NaN.

    ## Example
    `std = torch.exp(0.5 * self.log_variance(x))`

    ## The fix
    Bound the exponent: `log_std.clamp(-20, 2).exp()`; or `F.softplus`, which grows linearly.

    ## The popular fix that does not work
    Clipping the gradient: it is NaN when it arrives.

    ## References
    motokimura/PyTorch_Gaussian_YOLOv3#23; Soft Actor-Critic implementations (log_std in [-20, 2])
    """

    code = "SRC043"
    name = "exp-of-raw-output"
    cause = "EXP_OVERFLOW"
    severity = Severity.INFO

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "exp"):
            value = operation.operands[0]
            if operation.no_grad or not value.known or value.high < 88:
                continue
            made = value.made
            if value.has("literal") and 88.7 < value.high < math.inf:
                yield self.finding(
                    f"exp of {value.high:g}, which is written in the source: float32 ends at 88.7",
                    fix="bound the exponent, or stay in log space",
                    evidence=evidence(operation, value),
                    severity=level(operation, Severity.WARNING),
                    **at(subject, operation),
                )
                continue
            if made is None or not (value.has("network") or _scaled(made)):
                continue
            if value.has("clamped") or value.has("shifted") or _divides(subject, operation):
                continue
            layer = value.made_by("Linear", "Conv1d", "Conv2d", "Conv3d", depth=3)
            if layer is None:
                continue
            yield self.finding(
                f"exp of a layer's output (line {layer.line}) that nothing bounds: it "
                "overflows above 88 (11 in float16)",
                fix="bound the exponent, log_std.clamp(-20, 2).exp(), or use F.softplus",
                evidence=evidence(operation, value),
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _scaled(made: Operation) -> bool:
    """0.5 * x, x / 2: the output times a constant."""
    return (
        made.name in ("mul", "div")
        and any(operand.has("network") for operand in made.operands)
        and any(operand.number is not None for operand in made.operands)
    )


def _divides(subject: SourceFile, operation: Operation) -> bool:
    """x / exp(s): an infinite divisor gives 0."""
    line = subject.line(operation.line)
    return line[: operation.column - 1].rstrip(" (").endswith("/")
