"""CFG002: an eps that is zero, or as good as zero, in the configured precision."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.config_file import ConfigFile
from stayfinite.rules.config.phrases import EPSILONS, at, shown

SMALLEST = 2.0**-24


class EpsBelowItsDtype(Rule[ConfigFile]):
    """An eps is zero in the precision that the weights have, or far too small for any.

    ## What it finds
    An eps below 6e-8 where the weights themselves are float16 (a `dtype: float16` of the model, or a source
    beside the configuration that calls `.half()` on the model), and any eps below 1e-15 (`eps-floor`).
    Mixed precision keeps float32 weights, where 1e-8 is fine.

    ## Why it is bad
    float16(1e-8) is 0: Adam computes m/0 in its first step. An eps of 1e-20 gives gradients of 1e20 at zero
    in float32.

    ## Example
    `eps: 1.0e-8` in a project that calls `model.half()`

    ## The fix
    Keep float32 weights (autocast, with a GradScaler for float16). If they must be float16: eps 1e-4 and a
    float32 copy of the weights in the optimizer.

    ## The popular fix that does not work
    Only raising eps: the second moment still underflows, and the optimizer is another one.

    ## References
    afiaka87/glide-finetune#5; IEEE 754 binary16: smallest number 2**-24
    """

    code = "CFG002"
    name = "eps-below-its-dtype"
    cause = "EPS_UNDERFLOW"
    severity = Severity.ERROR

    def check(self, subject: ConfigFile) -> Iterator[Finding]:
        floor = subject.threshold("eps-floor", 1e-15)
        half = _half_weights(subject)
        for entry in subject.find(*EPSILONS):
            eps = entry.number
            if eps is None or eps <= 0:
                continue
            if half is not None and eps < SMALLEST:
                yield self.finding(
                    f"{shown(entry)} is exactly 0 in float16, and {half}",
                    fix="keep float32 weights with autocast and a GradScaler; else an eps of at least 1e-4",
                    evidence={"key": entry.name, "eps": eps, "smallest_float16": SMALLEST},
                    **at(entry),
                )
            elif eps < floor:
                yield self.finding(
                    f"{shown(entry)} is too small to protect a division in any precision",
                    fix="1e-6 (1e-5 in half precision) for normalisation layers, 1e-8 for Adam in float32",
                    evidence={"key": entry.name, "eps": eps, "floor": floor},
                    severity=Severity.WARNING,
                    **at(entry),
                )


def _half_weights(config: ConfigFile) -> str | None:
    if config.half_model is not None and config.half_model.dtype == "float16":
        return f"the model is turned into float16 at {config.half_model.file}:{config.half_model.line}"
    for entry in config.find("dtype", "torch_dtype", "param_dtype", "weight_dtype", "model_dtype"):
        if str(entry.value).lower().rpartition(".")[2] in ("float16", "fp16", "half"):
            return f"{shown(entry)} (line {entry.line}) asks for float16 weights"
    for entry in config.find("precision"):
        if entry.value == "16-true":  # Lightning and Fabric; "16-mixed" keeps float32 weights
            return f"{shown(entry)} (line {entry.line}) asks for float16 weights"
    return None
