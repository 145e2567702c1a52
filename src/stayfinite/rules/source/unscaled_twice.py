"""SRC021: scaler.unscale_ called twice for one optimizer between two updates."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import before, exclusive, implied
from stayfinite.rules.source.phrases import at


class UnscaleTwice(Rule[SourceFile]):
    """scaler.unscale_ is called twice for the same optimizer between two updates of the scaler.

    ## What it finds
    Two `scaler.unscale_(optimizer)` in one turn of the loop, the first of which always runs when the second
    does, with no `scaler.update()` between.

    ## Why it is bad
    torch raises "unscale_() has already been called on this optimizer since the last update()"; a
    hand-written scaler divides the gradients twice and the update is 65536 times too small.

    ## Example
    `scaler.unscale_(opt); clip(...); scaler.unscale_(opt); scaler.step(opt)`

    ## The fix
    Once, before the first use of the gradients; `scaler.step` knows that it was done.

    ## The popular fix that does not work
    Calling `scaler.update()` between them: it changes the scale in the middle of a step.

    ## References
    torch.amp.GradScaler.unscale_ documentation
    """

    code = "SRC021"
    name = "unscale-twice"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            for second in facts.events:
                if second.what != "unscale" or not second.subject:
                    continue
                for first in before(facts, second, "unscale", "update", "backward"):
                    if first.what != "unscale" or first.loop != second.loop:
                        break
                    if (
                        first.subject != second.subject
                        or exclusive(first, second)
                        or not implied(first, second)
                    ):
                        continue
                    yield self.finding(
                        f"unscale_ of {second.subject} was already called at line {first.line}",
                        fix="unscale once, after backward; scaler.step knows that it was done",
                        evidence={"first": first.line, "optimizer": second.subject},
                        **at(subject, second),
                    )
                    break
