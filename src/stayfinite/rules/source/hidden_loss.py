"""SRC015: a loss whose bad values are replaced instead of refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence

LOSS = re.compile(r"(^|[._])(\w+_)?loss(es)?$", re.IGNORECASE)


class BadLossHidden(Rule[SourceFile]):
    """A loss passes through nan_to_num or a clamp, which hides that it is not finite.

    ## What it finds
    `loss = torch.nan_to_num(loss)`, `loss.clamp(max=100)`, `torch.clamp(loss, 0, 6)`: an assignment to a
    variable named loss of a cleaned version of itself, and nan_to_num of a prediction that a network gives.

    ## Why it is bad
    Inf becomes 100 with a gradient of exactly zero, NaN becomes 0 with a NaN gradient: the curve looks fine
    while nothing is learnt, or the weights are poisoned behind it.

    ## Example
    `loss = torch.clamp(loss, max=100.0)`

    ## The fix
    Refuse the step instead: `if not torch.isfinite(loss): optimizer.zero_grad(); continue`, counted and
    logged; then find where it is born.

    ## The popular fix that does not work
    Clamping tighter. A clamped loss has no gradient above the clamp, so the hardest samples are never
    learnt.

    ## References
    stayfinite Guard; TrainCheck (silent training errors)
    """

    code = "SRC015"
    name = "bad-loss-hidden"
    cause = "BLIND_GUARD"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("nan_to_num", "clamp", "clamp_", "clip"):
            if not operation.operands or operation.no_grad:
                continue
            value = operation.operands[0]
            first = _argument(operation.text)
            about_loss = first is not None and LOSS.search(first) is not None and "log" not in first.lower()
            if operation.name != "nan_to_num":
                upper = operation.option("max", 2)
                lower = operation.option("min", 1)
                bounded = upper is not None and upper.kind != "none"
                if not about_loss or not bounded or (lower is not None and upper is lower):
                    continue
                yield self.finding(
                    f"`{operation.text}` turns an infinite loss into a constant with gradient 0",
                    fix="refuse the step instead: if not torch.isfinite(loss): skip, count and log it",
                    evidence=evidence(operation),
                    **at(subject, operation),
                )
            elif about_loss or value.has("network"):
                yield self.finding(
                    f"`{operation.text}` hides NaN in the forward; the gradient behind it "
                    "is NaN or 0 all the same",
                    fix="refuse the step instead (if not torch.isfinite(loss): skip), and find "
                    "where the NaN is born",
                    evidence=evidence(operation),
                    **at(subject, operation),
                )


def _argument(text: str) -> str | None:
    """The variable that is cleaned: of torch.clamp(loss, ...) and of loss.clamp(...)."""
    match = re.match(r"torch\.\w+\(\s*([\w.]+)|([\w.]+)\.(?:clamp_?|clip|nan_to_num)\(", text)
    return (match.group(1) or match.group(2)) if match else None
