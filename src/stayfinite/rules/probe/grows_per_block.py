"""PRB010: outputs that grow from block to block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import BlockGrowth, ProbedModel

_FACTOR = 1.7
_TOTAL = 20.0
_LEARNED_TOTAL, _LEARNED_TIMES = 100.0, 20.0
_FLOAT16 = 65504.0


class GrowsPerBlock(Rule[ProbedModel]):
    """What equal blocks put out grows by a factor from each to the next.

    ## What it finds
    At least 4 blocks of one class in one list, where the root mean square of the output grows at every block but one,
    by a factor of more than 1.7 on the geometric mean and more than 20 in all. With --stress also growth that is
    learned: after 40 steps at the learning rate itself more than 100 from first to last block, and at least 20 times
    what it was before them.

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
        named = set()
        for growth in subject.growths:
            if _total(growth) >= _TOTAL and _each(growth) >= _FACTOR and _rises(growth):
                named.add(growth.blocks)
                yield self._finding(growth, "")
        stress = subject.stress
        before = {(growth.blocks, growth.kind): _total(growth) for growth in subject.growths}
        for growth in stress.growths if stress is not None else ():
            begun = before.get((growth.blocks, growth.kind), 0.0)
            if growth.blocks in named or not begun or not _rises(growth):
                continue
            if _total(growth) >= _LEARNED_TOTAL and _total(growth) >= _LEARNED_TIMES * begun:
                steps = stress.own_steps if stress is not None else 0
                yield self._finding(
                    growth,
                    f"after {steps} steps at the learning rate (before them {begun:.3g} times in all): ",
                )

    def _finding(self, growth: BlockGrowth, when: str) -> Finding:
        first, last, each = growth.rms[0], growth.rms[-1], _each(growth)
        left = max(0, math.ceil(math.log(_FLOAT16 / last) / math.log(each)))
        limit = f"{left} more blocks would reach float16's limit" if left else "it is beyond float16's limit"
        return self.finding(
            f"{when}the output of {len(growth.rms)} {growth.kind} ({growth.blocks}) grows {each:.3g} times per block, "
            f"from {first:.3g} to {last:.3g}; {limit}",
            fix="normalise each branch, scale it by 1/sqrt(2 x blocks) or a gain of 0, or initialise smaller"
            if not when
            else "bound what is learned to grow (mixing weights that sum to 1, a norm, a scaled branch), and lower "
            "the learning rate",
            evidence={
                "battery": "stress" if when else "stability",
                "blocks": growth.blocks,
                "per_block": each,
                "rms": list(growth.rms),
            },
        )


def _total(growth: BlockGrowth) -> float:
    return growth.rms[-1] / growth.rms[0] if growth.rms[0] > 0 else 0.0


def _each(growth: BlockGrowth) -> float:
    return math.exp(math.log(_total(growth)) / (len(growth.rms) - 1)) if _total(growth) > 0 else 0.0


def _rises(growth: BlockGrowth) -> bool:
    """At every block but one."""
    return sum(b > a for a, b in pairwise(growth.rms)) >= len(growth.rms) - 2
