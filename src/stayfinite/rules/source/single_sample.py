"""SRC013: a deviation or variance over what can be a single sample."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence, unguarded


class DeviationOfOneSample(Rule[SourceFile]):
    """A standard deviation or variance is taken over what can be a single sample, which is NaN.

    ## What it finds
    `std()`, `var()` (with the default correction) of a tensor that the source shows to have one element, or
    of a slice of a loop (`x[i : i + n]`), whose last piece may hold one.

    ## Why it is bad
    The unbiased deviation divides by n - 1 = 0. The last mini-batch of an epoch is often shorter than the
    others.

    ## Example
    `adv = (adv - adv.mean()) / (adv.std() + 1e-8)` inside `for i in range(0, n, batch_size)`

    ## The fix
    Skip it for a single sample (`if adv.numel() > 1`), drop the last short batch, or use `correction=0`.

    ## The popular fix that does not work
    The eps in the denominator: NaN + 1e-8 is NaN.

    ## References
    DLR-RM/stable-baselines3#325, DLR-RM/stable-baselines3#265
    """

    code = "SRC013"
    name = "deviation-of-single-element"
    cause = "TOO_FEW_SAMPLES"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unguarded(subject, "std", "var"):
            value = operation.operands[0]
            correction = operation.options.get("correction") or operation.options.get("unbiased")
            if correction is not None and correction.const in (0, False):
                continue
            single = _single(operation)
            over = operation.option("dim", 1)
            rows = over is None or over.number == 0  # over the samples
            piece = value.has("slice") and operation.in_loop and rows
            if not (single or piece or _advantages(subject, operation)):
                continue
            what = "a single element" if single else "what may be a single sample (the last, shorter batch)"
            yield self.finding(
                f"{operation.name} of {what}: it divides by n - 1 = 0",
                fix="leave it out for one sample (if x.numel() > 1), drop the last short "
                "batch, or use correction=0",
                evidence=evidence(operation, value),
                severity=Severity.ERROR if single else self.severity,
                **at(subject, operation),
            )


def _single(operation: Operation) -> bool:
    """The reduced dimensions are known to have one element."""
    shape = operation.operands[0].shape
    if not shape:
        return False
    given = operation.option("dim", 1)
    if given is None:
        return all(size == 1 for size in shape)
    number = given.number
    return number is not None and -len(shape) <= number < len(shape) and shape[int(number)] == 1


def _advantages(subject: SourceFile, operation: Operation) -> bool:
    """(adv - adv.mean()) / (adv.std() + eps) of advantages, whose last mini-batch may hold one."""
    name = operation.text.partition(".std(")[0]
    if len(operation.operands) != 1 or operation.options or operation.operands[0].known:
        return False
    if not re.fullmatch(r"(\w+\.)?\w*(adv|advs|advantage|advantages)\w*", name, re.IGNORECASE):
        return False
    line = subject.line(operation.line)
    return f"{name}.mean()" in line
