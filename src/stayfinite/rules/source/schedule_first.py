"""SRC022: the scheduler steps before the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import before, exclusive
from stayfinite.rules.source.phrases import at


class SchedulerBeforeOptimizer(Rule[SourceFile]):
    """The learning-rate scheduler steps before the optimizer, so the first rate of the schedule is skipped.

    ## What it finds
    `scheduler.step()` before `optimizer.step()` in the same turn of a loop (or at the head of the epoch
    loop whose inner loop steps), with no optimizer step before it. Not `scheduler.step(metric)` and
    `scheduler.step(epoch)`, which pass over no rate.

    ## Why it is bad
    The first value of the schedule is never used; a warm-up that starts at a small rate starts at its
    second value, and a schedule with the right length ends one step early (OneCycleLR then raises).

    ## Example
    `for epoch in range(n): scheduler.step(); for batch in loader: ...; optimizer.step()`

    ## The fix
    `optimizer.step()` first, then `scheduler.step()`.

    ## The popular fix that does not work
    Silencing torch's warning about the order.

    ## References
    torch.optim: "How to adjust learning rate" (since 1.1.0)
    """

    code = "SRC022"
    name = "scheduler-before-optimizer"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            for schedule in facts.events:
                if schedule.what != "schedule" or not schedule.loop:
                    continue
                if schedule.argument:  # a metric or an epoch: no rate is passed over by it
                    continue
                inside = [e for e in facts.events if e.loop[: len(schedule.loop)] == schedule.loop]
                steps = [e for e in inside if e.what == "step" and not exclusive(e, schedule)]
                backwards = [e for e in inside if e.what == "backward"]
                if not steps or not backwards:
                    continue
                place = facts.events.index(schedule)
                if any(facts.events.index(e) < place for e in steps):
                    continue
                if any(e.what == "step" for e in before(facts, schedule, "step")):
                    continue
                yield self.finding(
                    f"{schedule.subject}.step() comes before the optimizer's step (line {steps[0].line})",
                    fix="step the optimizer first, then the scheduler",
                    evidence={"step": steps[0].line},
                    **at(subject, schedule),
                )
                break
