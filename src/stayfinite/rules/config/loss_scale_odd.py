"""CFG010: loss-scale settings that let the scale collapse or never move."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile, Entry
from stayfinite.rules.config.phrases import at, shown


class LossScaleOdd(Rule[ConfigFile]):
    """Settings of the loss scale let it collapse below 1, start absurdly, or never move.

    ## What it finds
    a minimum loss scale below 1 (`min-loss-scale`), an initial scale above 2**24 or below 1, an initial
    power above 24, a static scale instead of a dynamic one.

    ## Why it is bad
    A scale that keeps halving is a symptom: the forward overflows. Below 1 gradients underflow, at 0 the
    next clean batch is 0 times Inf = NaN, which the scaler does not see. A static scale is right for a few
    thousand steps.

    ## Example
    `min_loss_scale: 1e-10`

    ## The fix
    A minimum of 1 and a search for the forward overflow; dynamic scaling (`loss_scale: 0` in DeepSpeed)
    from 65536.

    ## The popular fix that does not work
    A smaller minimum, so that the run "goes on": it goes on without gradients.

    ## References
    deepspeedai/DeepSpeed#931; torch.amp.GradScaler (init 65536, no floor)
    """

    code = "CFG010"
    name = "loss-scale-odd"
    cause = "LOSS_SCALE_COLLAPSE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for finding, entry in self._odd(subject):
            if not _switched_off(subject, entry):
                yield finding

    def _odd(self, subject: ConfigFile) -> Iterator[tuple[Finding, Entry]]:
        least = subject.threshold("min-loss-scale", 1.0)
        for entry in subject.find("min_loss_scale", "min_scale", "minimum_loss_scale", "loss_scale_min"):
            if entry.number is not None and entry.number < least:
                made = self.finding(
                    f"{shown(entry)} lets the scale collapse: below 1 gradients underflow, "
                    "at 0 the weights become NaN",
                    fix="a minimum of 1, and find what overflows in the forward",
                    evidence={"value": entry.number, "least": least},
                    severity=Severity.ERROR,
                    **at(entry),
                )
                yield made, entry
        for entry in subject.find("init_scale", "initial_scale", "initial_loss_scale"):
            if entry.number is not None and not 1 <= entry.number <= 2**24:
                made = self.finding(
                    f"{shown(entry)}: a start far from 65536 skips many steps or loses gradients",
                    fix="65536, torch's own default",
                    evidence={"value": entry.number},
                    **at(entry),
                )
                yield made, entry
        for entry in subject.find("initial_scale_power"):
            if entry.number is not None and not 0 <= entry.number <= 24:
                made = self.finding(
                    f"{shown(entry)}: 2**{entry.number:g} as a start skips many steps",
                    fix="16, which is 65536",
                    evidence={"power": entry.number},
                    **at(entry),
                )
                yield made, entry
        for entry in subject.find("loss_scale"):
            if (
                entry.number is not None
                and entry.number > 0
                and (subject.kind == "deepspeed" or entry.number not in (1,))
            ) and (
                any(word in entry.name.lower() for word in ("fp16", "amp", "scaler", "loss_scale"))
                and entry.number > 1
            ):
                made = self.finding(
                    f"{shown(entry)} is static: it does not follow the gradients",
                    fix='dynamic scaling (0 in DeepSpeed, "dynamic" elsewhere) from 65536',
                    evidence={"value": entry.number},
                    severity=Severity.INFO,
                    **at(entry),
                )
                yield made, entry


def _switched_off(subject: ConfigFile, entry: Entry) -> bool:
    """Nothing is scaled: the section says `enabled: false`, or leaves it open while bf16 is on."""
    enabled = next((other for other in subject.find("enabled") if other.path[:-1] == entry.path[:-1]), None)
    if enabled is None or enabled.flag is True:
        return False
    bfloat16 = subject.first("enabled", section="bf16") or subject.first("enabled", section="bfloat16")
    return enabled.flag is False or (bfloat16 is not None and bfloat16.flag is True)
