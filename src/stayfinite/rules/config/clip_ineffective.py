"""CFG008: gradient clipping that is switched off or too large to act."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import CLIPS, at, shown


class ClipOffOrHuge(Rule[ConfigFile]):
    """Gradient clipping is switched off, or set so high that it never acts.

    ## What it finds
    a clipping norm that is 0, negative or none, or above 100 (`clip-ceiling`).

    ## Why it is bad
    One bad batch has a gradient hundreds of times the usual one. Without a clip it goes into the weights
    whole, and into Adam's second moment, where it stays for thousands of steps.

    ## Example
    `max_grad_norm: 1000`

    ## The fix
    1.0, or a little above the norm that healthy steps show.

    ## The popular fix that does not work
    A clip as the answer to NaN: clipping a NaN norm makes every gradient NaN.

    ## References
    Pascanu et al. 2013; transformers TrainingArguments (max_grad_norm 1.0)
    """

    code = "CFG008"
    name = "clip-off-or-huge"
    cause = "LR_DIVERGENCE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        ceiling = subject.threshold("clip-ceiling", 100.0)
        for entry in subject.find(*CLIPS):
            clip = entry.number
            off = entry.value is None or entry.flag is False or (clip is not None and clip <= 0)
            if off and not entry.section:
                yield self.finding(
                    f"{shown(entry)} switches gradient clipping off",
                    fix="1.0, or a little above the norm of healthy steps",
                    evidence={"key": entry.name, "value": clip},
                    severity=Severity.INFO,
                    **at(entry),
                )
            elif clip is not None and clip > ceiling and "value" not in entry.word:
                yield self.finding(
                    f"{shown(entry)} never acts: norms of healthy steps lie around 1",
                    fix="1.0, or a little above the norm of healthy steps",
                    evidence={"key": entry.name, "value": clip, "ceiling": ceiling},
                    **at(entry),
                )
