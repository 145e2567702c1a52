"""CFG001: a number that the YAML or JSON reader gives back as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile, looks_like_number
from stayfinite.rules.config.phrases import at, edit, shown

_NUMBERS = frozenset(
    [
        "lr", "learning_rate", "min_lr", "max_lr", "base_lr", "weight_decay", "eps", "adam_epsilon", "beta1",
        "beta2", "warmup_steps", "warmup_ratio", "epochs", "max_steps", "batch_size", "clip_norm",
        "max_grad_norm", "dropout", "temperature", "momentum", "gradient_accumulation_steps",
    ]
)  # fmt: skip


class NumberIsText(Rule[ConfigFile]):
    """A setting looks like a number and is read as text.

    ## What it finds
    `lr: 1e-5` in YAML (PyYAML wants a dot, and a sign in the exponent: `1.0e-5`), and a number in quotes
    for a setting that is a number everywhere else. Files that another loader reads are left alone: those of a
    Hydra folder, and those beside or below a source that imports yacs, OmegaConf or ruamel. Where every read of
    the key is a `float(config["lr"])` it is a note.

    ## Why it is bad
    The text travels until something multiplies or compares it: an error far from here, or a comparison of
    texts that is silently wrong.

    ## Example
    `lr: 1e-5`

    ## The fix
    `lr: 1.0e-5`, or `0.00001`. `--fix` writes the dot.

    ## The popular fix that does not work
    `float(config["lr"])` at the place that failed: the next place fails next.

    ## References
    YAML 1.1 float resolver of PyYAML (yaml/pyyaml#173)
    """

    code = "CFG001"
    name = "number-is-text"
    cause = "CONFIG_MISTAKE"
    severity = Severity.ERROR

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        if subject.kind == "hydra" or subject.reads_exponents:
            return  # OmegaConf, yacs and ruamel read 1e-5 as a number
        for entry in subject.entries:
            if not isinstance(entry.value, str) or not looks_like_number(entry.value) or entry.section:
                continue
            if subject.form == "yaml" and not entry.quoted:
                new = _with_dot(entry.text)
                made = entry.word in subject.made_numbers
                yield self.finding(
                    f"{shown(entry)} is text for PyYAML, not a number"
                    + ("; the source makes one of it wherever it reads this key" if made else ""),
                    fix=f"write {new}",
                    evidence={"key": entry.name, "value": entry.value, **edit(entry, new)},
                    severity=Severity.INFO if made else None,
                    **at(entry, value=True),
                )
            elif entry.quoted and entry.word in _NUMBERS:
                yield self.finding(
                    f"{entry.name}: {entry.value!r} is text because of its quotes",
                    fix="remove the quotes",
                    evidence={"key": entry.name, "value": entry.value},
                    **at(entry, value=True),
                )


def _with_dot(text: str) -> str:
    """1e-5 -> 1.0e-5, 5e5 -> 5.0e+5"""
    mantissa, exponent = re.split("[eE]", text, maxsplit=1) if re.search("[eE]", text) else (text, "")
    if "." not in mantissa:
        mantissa += ".0"
    if exponent and exponent[0] not in "+-":
        exponent = f"+{exponent}"
    return f"{mantissa}e{exponent}" if exponent else mantissa
