"""SRC025: a running sum of losses that keeps every step's graph and one NaN for ever."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.order import exclusive
from stayfinite.rules.source.phrases import at


class LossSummedWithItsGraph(Rule[SourceFile]):
    """A running sum of losses keeps the graph of every step, and one NaN in it for the rest of the run.

    ## What it finds
    `total += loss` in a loop that also calls `loss.backward()`, without `.item()` or `.detach()`, where the
    total itself is not trained on.

    ## Why it is bad
    Every step's graph stays in memory until the epoch ends, and one NaN makes the average NaN, so that it
    tells nothing of the batches after it.

    ## Example
    `loss.backward(); optimizer.step(); running_loss += loss`

    ## The fix
    `running_loss += loss.item()`, non-finite values left out and counted.

    ## The popular fix that does not work
    `torch.cuda.empty_cache()`: the memory is in use.

    ## References
    PyTorch FAQ, "My model reports out of memory": don't accumulate history across your training loop
    """

    code = "SRC025"
    name = "loss-summed-with-its-graph"
    cause = "STATE_POISONED"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            trained = {event.subject for event in facts.events if event.what == "backward"}
            for event in facts.events:
                if (
                    event.what != "accumulate"
                    or not event.loop
                    or event.argument not in trained
                    or event.subject in trained
                ):
                    continue
                backward = next(
                    (
                        b
                        for b in facts.events
                        if b.what == "backward" and b.subject == event.argument and b.loop == event.loop
                    ),
                    None,
                )
                if backward is None or exclusive(backward, event):
                    continue
                plain = any(
                    e.what == "assign"
                    and e.subject == event.argument
                    and any(name.endswith((".item", ".detach")) for name in e.argument.split())
                    for e in facts.events
                )
                detached = any(
                    e.what == "assign"
                    and e.subject == event.subject
                    and e.argument.endswith((".item", ".detach"))
                    for e in facts.events
                )
                emptied = any(  # every few steps: what is gathered does not grow for ever
                    e.what == "assign"
                    and e.subject == event.subject
                    and e.loop == event.loop
                    and not e.argument
                    for e in facts.events
                )
                if plain or detached or emptied:
                    continue
                yield self.finding(
                    f"{event.subject} gathers {event.argument} and keeps the graph of every step "
                    f"(backward at line {backward.line})",
                    fix=f"gather {event.argument}.item(), non-finite values left out and counted",
                    evidence={"backward": backward.line},
                    **at(subject, event),
                )
