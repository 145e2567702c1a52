"""RUN019: the overflow is the last link of a growth through the modules before it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.growth import LineGain
from stayfinite.findings.update_size import largest_update
from stayfinite.rules.evidence import told


class GrownThroughModules(Rule[FailedStep]):
    """An op overflowed because the modules before it enlarge what they are given, again and again.

    ## What it finds
    A legal op of the forward pass that left the range of its dtype, where the trace shows the way of the largest values
    from the input to it: at least three modules of one class on that way enlarge what they are given by 1.3 and more
    each and tenfold together; or the line that overflowed enlarges its input at least fourfold in each of three and
    more modules. The lines that do most of it are named.

    ## Why it is bad
    Growth by a factor in each block is exponential in depth. The op that overflows is merely the first at which there
    was no room left: in float32 it happens later, or in a deeper model, or after more steps.

    ## Example
    `read = (torch.sigmoid(pre) * x).sum(dim=1)` over 8 streams: 4 times larger in each of 6 blocks

    ## The fix
    Give the amplifying lines a gain of 1: weights that sum to 1 (softmax in the place of a sum of sigmoids, Sinkhorn
    for mixing), standardised filters divided by the root of their fan-in, one skip and not two.

    ## The popular fix that does not work
    Running the one op in float32 or bfloat16, and no more: it gains room, and the growth goes on. A norm behind the
    op: it comes too late.

    ## References
    lucidrains/hyper-connections#4
    """

    code = "RUN019"
    name = "grown-through-modules"
    cause = "FP16_OVERFLOW"
    severity = Severity.ERROR
    more_specific_than = ("NUM021", "NUM025", "RUN010")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        growth, first = subject.growth, subject.judged[0] if subject.judged else None
        if growth is None or first is None or first.how.kind not in (Kind.HALF_OVERFLOW, Kind.GROWN):
            return
        trained = any(record.applied for record in subject.run.history[:-1])
        if first.how.kind is Kind.GROWN and not trained:
            return  # no training made it grow: the form of the code is the nearer explanation
        if largest_update(subject) is not None:
            return  # one update made these gains: the learning rate is the nearer explanation
        if (own := growth.at_birth) is not None:
            by = f"its line enlarges what it is given {own.gain:.3g} times in each of {own.modules} modules"
            lines: tuple[LineGain, ...] = (own,)
        elif (blocks := growth.blocks) is not None:
            by, lines = f"x {blocks[2]:.3g} in each of {blocks[1]} `{blocks[0]}`", growth.lines
        else:
            return
        birth, shown = first.birth, told(first)
        largest = max((o.absmax for o in birth.operands if o.absmax is not None), default=math.nan)
        range_ = "65504, where float16 ends" if birth.dtype == "float16" else f"the range of {birth.dtype}"
        yield self.finding(
            f"{birth.op} met values up to {largest:.3g} and passed {range_}; growth led there: {by}. {_where(lines)}",
            fix="give these lines a gain of 1: weights that sum to 1, filters divided by the root of their fan-in, one "
            "skip and not two; and go back to weights from before the growth",
            cause="FP16_OVERFLOW" if first.how.kind is Kind.HALF_OVERFLOW else "LR_DIVERGENCE",
            evidence={**shown["evidence"], "absmax": largest, "growth": growth.to_json()["lines"]},
            file=shown["file"],
            line=shown["line"],
            depth=Depth.UPSTREAM,
        )


def _where(lines: tuple[LineGain, ...]) -> str:
    shown = [
        f"line {line.line} (x {line.gain:.3g}{f': `{line.source}`' if line.source else ''})"
        for line in lines[:3]
    ]
    return f"Most of it: {'; '.join(shown)}" if shown else "It is spread over many lines"
