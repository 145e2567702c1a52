"""CFG007: a high rate for an Adam-like optimizer with a warm-up of zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import RATES, at, optimizer_of, place, shown


class WarmupMissing(Rule[ConfigFile]):
    """An Adam-like optimizer starts at a high rate with a warm-up that is set to zero.

    ## What it finds
    a warm-up that is written as 0 beside a rate of 3e-4 or more for Adam, AdamW, LAMB or Lion.

    ## Why it is bad
    Adam's second moment is an estimate from one step at first; the first updates have the full size of the
    rate in every weight. Transformers diverge there, or land where they learn slowly.

    ## Example
    `warmup_steps: 0` with `lr: 1.0e-3` and AdamW

    ## The fix
    A few hundred steps, or 1 % of the run.

    ## The popular fix that does not work
    A lower rate for the whole run: it costs all of it to spare the first 1 %.

    ## References
    Xiong et al. 2020; Ma and Yarats 2021 (warm-up of about 2 / (1 - beta2) steps)
    """

    code = "CFG007"
    name = "warmup-missing"
    cause = "LR_DIVERGENCE"
    severity = Severity.INFO

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        optimizer = optimizer_of(subject)
        if not any(known in optimizer for known in ("adam", "lamb", "lion")):
            return
        for entry in subject.find(
            "warmup_steps", "warmup", "num_warmup_steps", "warmup_ratio", "warmup_epochs", "warmup_iters"
        ):
            rate = subject.beside(entry, *RATES)
            if entry.number != 0 or rate is None or rate.number is None or rate.number < 3e-4:
                continue
            others = [e for e in subject.find("warmup_steps", "warmup_ratio", "warmup_epochs") if e.number]
            if others:
                continue
            yield self.finding(
                f"{shown(entry)} with {shown(rate)} ({place(rate, entry)}) and {optimizer}: the "
                "first steps have full size",
                fix="warm up over a few hundred steps, or 1 % of the run",
                evidence={"rate": rate.number, "optimizer": optimizer},
                **at(entry),
            )
