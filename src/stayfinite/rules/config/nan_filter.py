"""CFG016: a log that replaces NaN losses."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import at, edit, shown


class NanLossFiltered(Rule[ConfigFile]):
    """The trainer's log is told to replace NaN and Inf losses.

    ## What it finds
    `logging_nan_inf_filter: true`, written down.

    ## Why it is bad
    The Hugging Face trainer then logs the average of the finite losses; a run in which every loss is NaN
    prints `loss: 0.0` and looks finished.

    ## Example
    `logging_nan_inf_filter: true`

    ## The fix
    `logging_nan_inf_filter: false`; and a look at the gradient norm in the same log.

    ## The popular fix that does not work
    Watching the loss curve more often. It is the curve that is filtered.

    ## References
    transformers TrainingArguments.logging_nan_inf_filter (default true)
    """

    code = "CFG016"
    name = "nan-loss-filtered"
    cause = "BLIND_GUARD"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for entry in subject.find("logging_nan_inf_filter"):
            if entry.flag is True:
                yield self.finding(
                    f"{shown(entry)}: a dead run is logged as loss 0.0",
                    fix="logging_nan_inf_filter: false",
                    evidence={
                        "key": entry.name,
                        **edit(entry, "false" if subject.form != "python" else "False"),
                    },
                    **at(entry),
                )
