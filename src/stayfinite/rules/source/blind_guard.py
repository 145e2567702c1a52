"""SRC016: a test that skips bad batches and cannot see NaN."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at


class GuardBlindToNaN(Rule[SourceFile]):
    """A test that is meant to skip bad batches compares with > or <, which is false for NaN.

    ## What it finds
    `if loss > limit: continue` (or a gradient norm) in a function that trains, where no isfinite or isnan
    asks about the same variable.

    ## Why it is bad
    Every comparison with NaN is false. The guard catches large losses and lets NaN through, which is the
    case it was written for.

    ## Example
    `if loss > 100: skipped += 1; continue`

    ## The fix
    `if not torch.isfinite(loss) or loss > limit:`

    ## The popular fix that does not work
    A lower threshold. NaN is not larger than any number.

    ## References
    facebookresearch/metaseq#521
    """

    code = "SRC016"
    name = "comparison-blind-to-nan"
    cause = "BLIND_GUARD"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            trains = any(event.what in ("backward", "step") for event in facts.events)
            asked = {name for guard in facts.guards for name in (*guard.finite, *guard.only_nan)}
            for guard in facts.guards:
                if guard.never:
                    yield self.finding(
                        f"`if {guard.test}` is never true: NaN is not equal to anything, not even to NaN",
                        fix=f"use not torch.isfinite({guard.never[0]})",
                        evidence={"test": guard.test, "variables": list(guard.never)},
                        **at(subject, guard),
                    )
                    continue
                blind = [name for name in guard.compared if name not in asked]
                if (
                    not (trains and blind and guard.skips and guard.loop)
                    or "best" in guard.test
                    or "prev" in guard.test
                ):
                    continue
                if not re.search(r"[\w.)]+\s*>=?\s*", guard.test):
                    continue
                yield self.finding(
                    f"`if {guard.test}` is False for NaN: the batch it is meant to skip passes",
                    fix=f"ask first: if not torch.isfinite({blind[0]}) or {guard.test}",
                    evidence={"test": guard.test, "variables": blind},
                    **at(subject, guard),
                )
