"""SRC023: the schedule moves on when the GradScaler has skipped the step."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import exclusive
from stayfinite.rules.source.phrases import at


class SchedulerAheadOfScaler(Rule[SourceFile]):
    """The scheduler steps also when the GradScaler has skipped the optimizer's step.

    ## What it finds
    `scaler.step(optimizer)` and, in the same loop and without a look at the scale, `scheduler.step()`.

    ## Why it is bad
    The scaler leaves out the first steps until its scale fits (often 5 to 15), and every step with an
    overflow. The schedule moves on: a short warm-up is partly gone before the first update.

    ## Example
    `scaler.step(optimizer); scaler.update(); scheduler.step()`

    ## The fix
    `scale = scaler.get_scale(); scaler.update(); if scaler.get_scale() >= scale: scheduler.step()`

    ## The popular fix that does not work
    Silencing the warning that torch prints once.

    ## References
    torch.amp.GradScaler.step documentation
    """

    code = "SRC023"
    name = "scheduler-ahead-of-scaler"
    cause = "SCALER_MISUSE"
    severity = Severity.INFO

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            if any(event.what == "get_scale" for event in facts.events):
                continue
            scaled = [event for event in facts.events if event.what == "step" and event.scaled and event.loop]
            for schedule in facts.events:
                if schedule.what != "schedule":
                    continue
                step = next(
                    (s for s in scaled if s.loop == schedule.loop and not exclusive(s, schedule)), None
                )
                if step is None or facts.events.index(step) > facts.events.index(schedule):
                    continue
                yield self.finding(
                    f"{schedule.subject} moves on even when the scaler (line {step.line}) "
                    "has skipped the step",
                    fix="step the scheduler only if the scale did not fall: compare "
                    "scaler.get_scale() around scaler.update()",
                    evidence={"scaler_step": step.line},
                    **at(subject, schedule),
                )
                break
