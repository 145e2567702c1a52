"""SRC002: log(softmax(x)) or log(sigmoid(x)) in two steps."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, edit, evidence, level, unguarded


class LogOfProbability(Rule[SourceFile]):
    """A softmax or sigmoid is followed by a logarithm, which is minus infinity where the probability underflowed.

    ## What it finds
    `torch.log(torch.softmax(x, dim))`, `x.softmax(dim).log()`, `torch.log(torch.sigmoid(x))`, also over
    several lines. `--fix` rewrites the one-line forms.

    ## Why it is bad
    A float32 softmax is exactly 0 for a class 104 below the largest logit, a float16 one at 17; log(0) is
    minus infinity and the gradient is NaN. The fused form has no such point.

    ## Example
    `loss = -torch.log(torch.softmax(logits, -1)).gather(-1, y)`

    ## The fix
    `torch.log_softmax(x, dim)`, `F.logsigmoid(x)`, or a loss that takes logits (`F.cross_entropy`,
    `F.binary_cross_entropy_with_logits`). They are the same function, computed stably.

    ## The popular fix that does not work
    `torch.log(p + 1e-8)`: 1e-8 is zero in float16, and in float32 the loss of a wrong sample stops at 18.4
    and its gradient vanishes.

    ## References
    pytorch/pytorch#40497; torch.nn.functional.log_softmax documentation
    """

    code = "SRC002"
    name = "log-of-probability"
    cause = "LOG_DOMAIN"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "log"):
            value = operation.operands[0]
            made = value.made
            if made is None or made.name not in ("softmax", "sigmoid") or not value.reaches(0.0):
                continue
            stable = "F.log_softmax(x, dim)" if made.name == "softmax" else "F.logsigmoid(x)"
            yield self.finding(
                f"log of a {made.name} (line {made.line}): a probability that underflowed "
                "to 0 becomes minus infinity",
                fix=f"use {stable}, which is the same function without the zero",
                evidence={**evidence(operation, value), **_edit(operation, made)},
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _edit(operation: Operation, made: Operation) -> dict[str, object]:
    """The one-line forms in which the probability is used nowhere else."""
    inner = made.text
    if not inner or operation.text not in (f"{inner}.log()", f"torch.log({inner})"):
        return {}
    if made.name == "softmax":
        head, found, tail = (
            inner.rpartition("softmax(") if made.style == "method" else inner.partition("softmax(")
        )
        if not found or (made.style != "method" and not re.fullmatch(r"[\w.]*", head)) or head.endswith("_"):
            return {}
        return edit(operation, f"{head}log_softmax({tail}")
    match = re.fullmatch(
        r"(?:torch|F|nn\.functional|torch\.nn\.functional|torch\.special)\.sigmoid\((.*)\)", inner
    )
    if match is None or made.style == "method":
        return {}
    return edit(operation, f"torch.nn.functional.logsigmoid({match.group(1)})")
