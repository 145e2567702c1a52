"""PRB010: outputs that grow from block to block."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel

_FACTOR = 1.7
_TOTAL = 20.0
_FLOAT16 = 65504.0


class GrowsPerBlock(Rule[ProbedModel]):
    """What equal blocks put out grows by a factor from each to the next.

    ## What it finds
    At least 4 blocks of one class in one list, where the root mean square of the output grows at every block but one,
    by a factor of more than 1.7 on the geometric mean and more than 20 in all.

    ## Why it is bad
    The growth is exponential in depth: twice as many blocks square it. Half precision overflows first; the gradients of
    the first blocks are as much too large.

    ## Example
    A residual branch without normalisation: `x = x + self.mlp(x)` with weights of deviation 1

    ## The fix
    Normalise the input of each branch, scale the branch (by 1/sqrt(2 x blocks), or a gain that starts at 0), or
    initialise smaller.

    ## The popular fix that does not work
    Clipping gradients: the forward pass grows all the same.

    ## References
    The scaling of residual weights in GPT-2 (Radford et al., 2019)
    """

    code = "PRB010"
    name = "grows-per-block"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for growth in subject.growths:
            first, last, count = growth.rms[0], growth.rms[-1], len(growth.rms)
            if first <= 0 or last / first < _TOTAL:
                continue
            each = (last / first) ** (1 / (count - 1))
            rises = sum(b > a for a, b in pairwise(growth.rms))
            if each < _FACTOR or rises < count - 2:
                continue
            left = 0
            value = last
            while value < _FLOAT16 and left < 1000:
                value *= each
                left += 1
            yield self.finding(
                f"the output of {count} {growth.kind} ({growth.blocks}) grows {each:.3g} times per block, "
                f"from {first:.3g} to {last:.3g}; "
                + (
                    f"{left} more blocks would reach float16's limit"
                    if left
                    else "it is beyond float16's limit"
                ),
                fix="normalise each branch, scale it by 1/sqrt(2 x blocks) or a gain of 0, or initialise smaller",
                evidence={
                    "battery": "stability",
                    "blocks": growth.blocks,
                    "per_block": each,
                    "rms": list(growth.rms),
                },
            )
