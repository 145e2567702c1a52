"""NUM024: whole numbers that a half dtype cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep


class IntegersRounded(Rule[FailedStep]):
    """Positions, time steps or indices were made in a half dtype, in which many of them are the same number.

    ## What it finds
    `arange` and similar counters in bfloat16 beyond 256 or in float16 beyond 2048, where fewer different values
    are left than were counted.

    ## Why it is bad
    bfloat16 has 8 bits: 257 is 256, and from 512 on only every fourth number exists. Rotary and sinusoidal
    positions repeat, and long contexts are blurred without any NaN.

    ## Example
    `t = torch.arange(4096, dtype=torch.bfloat16); freqs = torch.outer(t, inv_freq)`

    ## The fix
    Make positions and the angles from them in float32 (or int64), and cast only the sine and cosine.

    ## The popular fix that does not work
    A higher learning rate, or training longer: the positions are equal, nothing can learn to tell them apart.

    ## References
    meta-pytorch/torchtune#2254
    """

    code = "NUM024"
    name = "integers-rounded"
    cause = "BF16_PRECISION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for rounded in subject.run.rounded:
            if rounded.distinct >= rounded.numel:
                continue
            positions = abs(rounded.largest - (rounded.numel - 1)) <= 0.01 * rounded.numel + 2
            yield self.finding(
                f"{rounded.numel} whole numbers up to {rounded.largest:g} are only {rounded.distinct} different "
                f"ones in {rounded.dtype}",
                fix="make positions and angles in float32, and cast the result of sin and cos only",
                evidence={"dtype": rounded.dtype, "numel": rounded.numel, "distinct": rounded.distinct},
                severity=Severity.ERROR if positions else Severity.WARNING,
                place=rounded.place,
            )
