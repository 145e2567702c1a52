"""CFG011: Adam settings known for spikes: beta2 too close to 1, betas swapped, eps tiny, norms in half."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile, Entry
from stayfinite.rules.config.phrases import EPSILONS, at, place, shown


class MomentsKnownToSpike(Rule[ConfigFile]):
    """Settings of Adam's moments are known for loss spikes, or impossible.

    ## What it finds
    beta2 above 0.9995, beta2 below beta1, a beta of 1 or more (or negative), eps below 1e-10 with beta2 of
    0.999 or more, gradient norms computed in half precision.

    ## Why it is bad
    A loss spike follows when the second moment underestimates the gradient: the larger beta2, the longer it
    remembers small gradients (1/(1 - beta2) steps); the smaller eps, the less holds the quotient. Norms in
    bfloat16 are off by up to 1/256.

    ## Example
    `betas: [0.9, 0.9999]`

    ## The fix
    betas (0.9, 0.95) for language models, (0.9, 0.999) else; eps 1e-8; norms in float32.

    ## The popular fix that does not work
    A lower rate: it makes spikes rarer and all of the run slower.

    ## References
    Wortsman et al. 2023 (StableAdamW); AdaGC (larger beta2, smaller eps and norms below float32 trigger
    spikes)
    """

    code = "CFG011"
    name = "moments-known-to-spike"
    cause = "BAD_BATCH_SPIKE"
    severity = Severity.WARNING

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        first, second = _betas(subject)
        if second is not None:
            entry, beta2 = second
            beta1 = first[1] if first is not None else None
            eps = subject.beside(entry, *EPSILONS)
            if not 0 <= beta2 < 1 or (beta1 is not None and not 0 <= beta1 < 1):
                message, level = f"{shown(entry)}: a beta must lie in [0, 1)", Severity.ERROR
            elif beta1 is not None and beta2 < beta1:
                message = f"{shown(entry)}: beta2 lies below beta1; are they swapped?"
                level = Severity.WARNING
            elif beta2 > 0.9995:
                message = f"{shown(entry)}: beta2 remembers {1 / (1 - beta2):.0f} steps, known for spikes"
                level = Severity.WARNING
            elif beta2 >= 0.999 and eps is not None and eps.number is not None and 0 < eps.number < 1e-10:
                message = f"{shown(entry)} with {shown(eps)} ({place(eps, entry)}): known for spikes"
                level = Severity.WARNING
            else:
                message, level = "", Severity.INFO
            if message:
                yield self.finding(
                    message,
                    fix="betas (0.9, 0.95) for language models, (0.9, 0.999) else; eps 1e-8",
                    evidence={"beta1": beta1, "beta2": beta2},
                    severity=level,
                    **at(entry),
                )
        for entry in subject.find("norm_dtype", "grad_norm_dtype", "clip_dtype"):
            if str(entry.value).lower().rpartition(".")[2] in ("float16", "fp16", "half", "bfloat16", "bf16"):
                yield self.finding(
                    f"{shown(entry)}: norms below float32 are off, and in float16 they overflow",
                    fix="norms in float32",
                    evidence={"value": entry.value},
                    **at(entry),
                )


Beta = tuple[Entry, float]


def _betas(config: ConfigFile) -> tuple[Beta | None, Beta | None]:
    for entry in config.find("betas", "adam_betas"):
        if isinstance(entry.value, list) and len(entry.value) >= 2:
            numbers = [v for v in entry.value[:2] if isinstance(v, (int, float)) and not isinstance(v, bool)]
            if len(numbers) == 2:
                return (entry, float(numbers[0])), (entry, float(numbers[1]))
    one, two = config.first("beta1", "adam_beta1"), config.first("beta2", "adam_beta2")
    first = (one, one.number) if one is not None and one.number is not None else None
    second = (two, two.number) if two is not None and two.number is not None else None
    return first, second
