"""SRC017: a test that asks for NaN and lets Inf pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at


class GuardBlindToInf(Rule[SourceFile]):
    """A test that is meant to skip bad batches asks for NaN only, so an infinite value passes.

    ## What it finds
    `if torch.isnan(loss): continue`, `if not math.isnan(norm): optimizer.step()`, `if loss != loss`, in a
    function that trains, where nothing asks about Inf.

    ## Why it is bad
    Overflow gives Inf first. An infinite norm makes clip_grad_norm_ write NaN into the gradients that were
    infinite and zero into all others, and isnan(norm) said nothing.

    ## Example
    `if not torch.isnan(norm): optimizer.step()`

    ## The fix
    `torch.isfinite`, which covers both.

    ## The popular fix that does not work
    Adding `torch.isnan` at more places.

    ## References
    pytorch/pytorch#46849; torch.nn.utils.clip_grad_norm_(error_if_nonfinite=True)
    """

    code = "SRC017"
    name = "isnan-blind-to-inf"
    cause = "BLIND_GUARD"
    severity = Severity.INFO

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            if not any(event.what in ("backward", "step") for event in facts.events):
                continue
            asked = {name for guard in facts.guards for name in guard.finite}
            for guard in facts.guards:
                blind = [
                    name for name in guard.only_nan if name not in asked and re.search("loss|norm|grad", name)
                ]
                if not blind or not (guard.skips or guard.steps_after):
                    continue
                yield self.finding(
                    f"`if {guard.test}` lets an infinite {blind[0]} pass",
                    fix=f"use torch.isfinite({blind[0]}), which covers NaN and Inf",
                    evidence={"test": guard.test, "variables": blind},
                    **at(subject, guard),
                )
