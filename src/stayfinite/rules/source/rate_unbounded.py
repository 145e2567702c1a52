"""SRC036: a learning-rate function that grows, or rises again, beyond its last step."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at, evidence


class ScheduleWithoutEnd(Rule[SourceFile]):
    """A learning-rate function has no bound: it grows with the step, or rises again after its last step.

    ## What it finds
    `LambdaLR(optimizer, lambda s: s / warmup)` without min, and a cosine of the step without a clamp of its
    progress.

    ## Why it is bad
    A warm-up without `min(1, ...)` never ends: if steps and epochs are confused, or the run is longer than
    thought, the rate keeps rising until the loss diverges. A cosine rises again after its period, for
    example when a run is resumed with a shorter length.

    ## Example
    `LambdaLR(opt, lambda s: s / (warm_epochs * steps_per_epoch))`

    ## The fix
    `min(1.0, s / warmup)`, `0.5 * (1 + cos(pi * min(1.0, s / total)))`.

    ## The popular fix that does not work
    A lower peak rate: it is reached anyway, later.

    ## References
    YunYang1994/TensorFlow2.0-Examples#8, Nerogar/OneTrainer#1604
    """

    code = "SRC036"
    name = "schedule-without-end"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("LambdaLR"):
            text = operation.text or subject.line(operation.line)
            match = re.search(r"lambda\s+(\w+)\s*:\s*(.+)", text)
            if match is None:
                continue
            step, body = match.group(1), match.group(2)
            if re.search(r"\b(min|max|clamp|clip|if|minimum)\b", body) or "**" in body:
                continue
            grows = re.match(rf"\(?\s*(?:float\()?\(?{step}(?:\s*\+\s*1)?\)?\)?\s*/", body)
            waves = re.search(rf"cos\([^)]*\b{step}\b\s*/", body) and "%" not in body
            if not grows and not waves:
                continue
            what = "grows with every step and never stops" if grows else "rises again after its last step"
            yield self.finding(
                f"the factor `{body.split(', last_epoch')[0].strip(' )')}` {what}",
                fix="bound the progress: min(1.0, step / total)",
                evidence=evidence(operation),
                **at(subject, operation),
            )
