"""CFG006: a warm-up that is as long as the run, or longer."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import EPOCHS, STEPS, at, place, shown


class WarmupLongerThanRun(Rule[ConfigFile]):
    """The warm-up is as long as the run or longer, so the rate never reaches its value.

    ## What it finds
    warm-up steps >= total steps, warm-up epochs >= epochs, a warm-up ratio of 1 or more; as a warning: a
    warm-up of more than half the run.

    ## Why it is bad
    The run ends while the rate still rises. Often steps and epochs were confused; then the rate rises for
    ever, or not at all.

    ## Example
    `warmup_steps: 5000` with `max_steps: 5000`

    ## The fix
    1 to 10 % of the run; the same unit for both.

    ## The popular fix that does not work
    A higher peak rate, so that the rate at the end is right: the schedule is then wrong for every other
    length.

    ## References
    YunYang1994/TensorFlow2.0-Examples#8
    """

    code = "CFG006"
    name = "warmup-longer-than-run"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        pairs = (
            (
                (
                    "warmup_steps",
                    "warmup",
                    "num_warmup_steps",
                    "warmup_iters",
                    "warmup_num_steps",
                    "lr_warmup_steps",
                ),
                STEPS,
            ),
            (("warmup_epochs", "num_warmup_epochs", "lr_warmup_epochs"), EPOCHS),
        )
        for words, totals in pairs:
            for entry in subject.find(*words):
                warmup = entry.number
                total = subject.beside(entry, *totals)
                if warmup is None or warmup < 1 or total is None or total.number is None or total.number <= 0:
                    continue
                if warmup >= total.number:
                    yield self.finding(
                        f"{shown(entry)} is not shorter than the run, {shown(total)} ({place(total, entry)})",
                        fix="1 to 10 % of the run, in the same unit",
                        evidence={"warmup": warmup, "total": total.number},
                        **at(entry),
                    )
                elif warmup > 0.5 * total.number:
                    yield self.finding(
                        f"{shown(entry)} takes more than half of the run, {shown(total)} ({place(total, entry)})",
                        fix="1 to 10 % of the run, in the same unit",
                        evidence={"warmup": warmup, "total": total.number},
                        severity=Severity.WARNING,
                        **at(entry),
                    )
        for entry in subject.find("warmup_ratio", "warmup_fraction", "pct_start"):
            ratio = entry.number
            if ratio is not None and ratio >= 1:
                yield self.finding(
                    f"{shown(entry)}: a ratio of 1 or more is a warm-up without an end",
                    fix="0.01 to 0.1",
                    evidence={"ratio": ratio},
                    **at(entry),
                )
