"""SRC024: a batch is skipped after backward and its bad gradients stay."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import before
from stayfinite.rules.source.phrases import at


class SkipKeepsBadGradients(Rule[SourceFile]):
    """A batch is skipped after backward, and its bad gradients stay and are added to the next batch's.

    ## What it finds
    `continue` behind a test for NaN, Inf or a large loss or norm, after backward, where gradients are
    cleared only after the step.

    ## Why it is bad
    Gradients accumulate. The skipped batch's NaN is still in `p.grad`, the next batch adds to it, and from
    then on every batch is skipped, or the weights are poisoned.

    ## Example
    `loss.backward(); if not torch.isfinite(norm): continue; optimizer.step(); optimizer.zero_grad()`

    ## The fix
    `optimizer.zero_grad()` before `continue`, or at the head of the loop.

    ## The popular fix that does not work
    A larger skip budget.

    ## References
    stayfinite Guard (a skip is a transaction)
    """

    code = "SRC024"
    name = "skip-keeps-bad-gradients"
    cause = "STATE_POISONED"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            suspicious = {guard.test for guard in facts.guards}
            for leave in facts.events:
                if leave.what != "leave" or leave.subject != "continue" or not leave.loop:
                    continue
                if not any(test in suspicious and way for test, way in leave.branch):
                    continue
                turn = [e for e in facts.events if e.loop[: len(leave.loop)] == leave.loop]
                place = facts.events.index(leave)
                backward = next((b for b in before(facts, leave, "backward") if b in turn), None)
                if backward is None:
                    continue
                start = facts.events.index(backward)
                cleared = [facts.events.index(e) for e in turn if e.what == "zero_grad"]
                if any(index < start or start < index < place for index in cleared) or not cleared:
                    continue
                yield self.finding(
                    f"`continue` after backward (line {backward.line}) keeps the bad "
                    "gradients for the next batch",
                    fix="call optimizer.zero_grad() before continue, or at the head of the loop",
                    evidence={"backward": backward.line},
                    **at(subject, leave),
                )
