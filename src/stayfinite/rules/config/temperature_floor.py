"""CFG004: a softmax temperature below the floor that training stands."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import at, shown


class TemperatureBelowFloor(Rule[ConfigFile]):
    """A temperature lies below the floor under which a softmax becomes one-hot and its gradients vanish or explode.

    ## What it finds
    student temperatures below 0.05, teacher temperatures below 0.04, any other temperature of a loss below
    0.01. The floors are those of DINO's teacher (0.04) and of the self-distillation systems this project
    started from; set others with `student-temperature-floor`, `teacher-temperature-floor`,
    `temperature-floor` in `[tool.stayfinite]`.

    ## Why it is bad
    Logits are divided by it: at 0.01 a logit of 1 becomes 100, beyond float32's exp and far beyond
    float16's. Probabilities are exactly 0 and 1, their logarithms infinite.

    ## Example
    `teacher_temperature: 0.01`

    ## The fix
    Raise it to the floor, warm it up (0.04 to 0.07 in DINO), and normalise what is divided.

    ## The popular fix that does not work
    Clamping the logits after the division: the gradient is zero where it is clamped.

    ## References
    DINO (Caron et al. 2021): teacher temperature 0.04, student 0.1; CLIP: logit scale at most 100, a
    temperature of 0.01
    """

    code = "CFG004"
    name = "temperature-below-floor"
    cause = "EXP_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        for entry in subject.entries:
            if entry.section or not (
                "temperature" in entry.word or entry.word.split("_")[-1] in ("temp", "tau")
            ):
                continue
            if (
                "epoch" in entry.word
                or "step" in entry.word
                or "sampling" in entry.name
                or "generation" in entry.name
            ):
                continue
            values = entry.value if isinstance(entry.value, list) else [entry.number]
            numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
            who = next((word for word in ("student", "teacher") if word in entry.name.lower()), "")
            name = f"{who}-temperature-floor" if who else "temperature-floor"
            floor = subject.threshold(name, {"student": 0.05, "teacher": 0.04}.get(who, 0.01))
            low = min(numbers, default=floor)
            if low < floor:
                yield self.finding(
                    f"{shown(entry)} is below the floor of {floor:g}"
                    + (" (it divides by zero)" if low == 0 else ""),
                    fix=f"raise it to {floor:g} or more, or set {name} in [tool.stayfinite]",
                    evidence={"key": entry.name, "value": low, "floor": floor},
                    **at(entry),
                )
