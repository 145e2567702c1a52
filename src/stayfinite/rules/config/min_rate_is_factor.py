"""CFG009: a least rate that lies above the rate itself: a multiplier, or a mistake."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import RATES, at, place, shown


class MinRateAboveRate(Rule[ConfigFile]):
    """The least learning rate lies above the learning rate: it is a multiplier, or a mistake.

    ## What it finds
    min_lr (eta_min, lr_end, final_lr) above the rate beside it.

    ## Why it is bad
    Where the code takes it as a rate, the schedule ends higher than it started. Where the code takes it as
    a factor of the rate (LambdaLR), the key says something else than it does, and the next reader sets it
    to 1e-6.

    ## Example
    `lr: 5.0e-5` with `min_lr: 0.01`

    ## The fix
    A rate below the rate; or a key that says what it is: min_lr_ratio.

    ## The popular fix that does not work
    Leaving both and writing a comment.

    ## References
    torch.optim.lr_scheduler.LambdaLR (a factor) and CosineAnnealingLR (eta_min, a rate)
    """

    code = "CFG009"
    name = "min-rate-above-rate"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for entry in subject.find(
            "min_lr", "eta_min", "lr_end", "final_lr", "lr_min", "minimum_lr", "end_lr"
        ):
            rate = subject.beside(entry, *RATES)
            if entry.number is None or rate is None or rate.number is None or rate.number <= 0:
                continue
            if entry.number > rate.number:
                yield self.finding(
                    f"{shown(entry)} is {entry.number / rate.number:.3g} times "
                    f"{shown(rate)} ({place(rate, entry)}): a factor, not a rate?",
                    fix="a rate below the rate, or a key that says what it is (min_lr_ratio)",
                    evidence={"min": entry.number, "rate": rate.number},
                    **at(entry),
                )
