"""CFG018: a rate, decay, momentum or probability that cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import RATES, at, shown

_RANGES: dict[str, tuple[float, float, bool]] = {
    "momentum": (0.0, 1.0, False),
    "ema": (0.0, 1.0, False),
    "ema_decay": (0.0, 1.0, False),
    "dropout": (0.0, 1.0, False),
    "attention_dropout": (0.0, 1.0, False),
    "label_smoothing": (0.0, 1.0, False),
    "label_smoothing_factor": (0.0, 1.0, False),
    "weight_decay": (0.0, 100.0, True),
    "warmup_ratio": (0.0, math.inf, True),
}


class ImpossibleNumber(Rule[ConfigFile]):
    """A setting has a value that it cannot have: a negative rate, a dropout of 1, a NaN.

    ## What it finds
    NaN or Inf anywhere a number belongs, a rate below 0, momentum, decay of an average, dropout or label
    smoothing outside of their ranges, an average's decay of 1 (it never moves).

    ## Why it is bad
    torch refuses some of them when the optimizer is made; others (a decay of 1, a negative weight decay)
    train quietly and wrongly.

    ## Example
    `ema_decay: 1.0`

    ## The fix
    The value that was meant.

    ## The popular fix that does not work
    Catching the exception.

    ## References
    torch.optim: "Invalid learning rate"; the range of torch.nn.Dropout
    """

    code = "CFG018"
    name = "impossible-number"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for entry in subject.entries:
            number = entry.number
            if entry.section or number is None:
                continue
            word, why = entry.word, ""
            if not math.isfinite(number) and (word in RATES or word in _RANGES or "loss" in word):
                why = "it is not finite"
            elif word in RATES and number < 0:
                why = "a rate cannot be negative"
            elif word in _RANGES:
                low, high, high_reached = _RANGES[word]
                if number < low or number > high or (number == high and not high_reached):
                    why = f"it must lie in [{low:g}, {high:g}{']' if high_reached else ')'}"
            if why:
                yield self.finding(
                    f"{shown(entry)}: {why}",
                    fix="write the value that was meant",
                    evidence={"key": entry.name, "value": number},
                    **at(entry),
                )
