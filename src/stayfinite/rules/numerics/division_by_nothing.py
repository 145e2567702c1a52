"""NUM006: a division by a count, a sum or another quantity that is zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity, TensorSummary
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import (
    DIVISIONS,
    at,
    births_by_weight,
    by_autograd,
    counted,
    divisor_of,
    facts,
    is_energy,
    source_of,
    span,
    tensors,
)
from stayfinite.rules.numerics.log_of_zero import argument_of_log, on_the_edge

_COUNTERS = ("bincount", "histc", "count_nonzero", "histogram", "unique", "unique_consecutive")
_SUMS = (
    "sum",
    "index_add",
    "scatter_add",
    "count_nonzero",
    "mean",
    "cumsum",
    "segment_reduce",
    "scatter_reduce",
)
# How likely "nothing was counted" is, by what the divisor is; kinds that other rules know better get little.
_BY_KIND = {
    "count": 0.96,
    "sum": 0.85,
    "mean": 0.55,
    "constant": 0.5,
    "other": 0.5,
    "max": 0.3,
    "probability": 0.3,
    "std": 0.25,
    "norm": 0.25,
    "range": 0.2,
    "energy": 0.4,
}


class DivisionByNothing(Rule[FailedStep]):
    """Something was divided by a count or a sum that is zero, because nothing was there to count.

    ## What it finds
    Divisions, reciprocals and negative powers by zero where the divisor is the number (or weight) of selected
    elements: the sum of a mask, the degree of a node, the size of a class, the area of a union. Also a logarithm
    of a frequency that is zero because a class is absent.

    ## Why it is bad
    0/0 is NaN, x/0 is infinite. It waits for the one batch in which a mask selects nothing, often after hours.

    ## Example
    `loss = (x * mask).sum() / mask.sum()` for a sample whose answer was cut off by the tokenizer

    ## The fix
    `/ mask.sum().clamp(min=1)`: the numerator is 0 anyway. Filter empty samples, smooth class counts by one.

    ## The popular fix that does not work
    Skipping steps whose loss is NaN without looking: the empty samples stay, and every average of losses that
    saw one is NaN too.

    ## References
    microsoft/LMOps#38, perslev/MultiPlanarUNet#24
    """

    code = "NUM006"
    name = "division-by-nothing"
    cause = "EMPTY_REDUCTION"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            if by_autograd(birth):
                continue
            divisor = _zero_divisor(birth)
            if divisor is not None:
                kind = _kind(birth, divisor)
                in_step = 0.5 if birth.phase == "optimizer" else 1.0
                yield self.finding(
                    f"division by {counted(divisor.summary.zeros, 'zero')}: the divisor is {_words(kind)}, "
                    f"{source_of(divisor)} ({span(divisor)})",
                    fix="divide by count.clamp(min=1) and filter what has nothing to count"
                    if kind in ("count", "sum")
                    else "find out why the divisor is zero; where zero is legal, clamp it away from 0",
                    evidence={
                        "inputs": tensors(*birth.operands),
                        "divisor_is": kind,
                        **facts(birth, "zero_divisors", "zero_over_zero"),
                    },
                    confidence=_BY_KIND.get(kind, 0.5) * in_step * weight,
                    **at(birth),
                )
                continue
            frequency = argument_of_log(birth)
            if frequency is not None and on_the_edge(birth, frequency) and _counted_up(frequency):
                yield self.finding(
                    f"the logarithm of a frequency that is zero: {counted(frequency.summary.zeros, 'class')} "
                    f"of {frequency.numel} never occurs",
                    fix="smooth the counts (add 1 to each) or leave absent classes out",
                    evidence={"inputs": tensors(frequency)},
                    confidence=0.93 * weight,
                    **at(birth),
                )


def _zero_divisor(birth: TracedBirth) -> Operand | None:
    exponent = birth.facts.get("exponent", birth.scalars.get("exponent"))
    negative_power = birth.op == "pow" and isinstance(exponent, (int, float)) and exponent < 0
    if birth.op not in DIVISIONS and not negative_power:
        return None
    divisor = divisor_of(birth)
    if divisor is None and birth.fact("zero_divisors"):  # a number of the script: x / 0
        zero = TensorSummary("other", (), birth.dtype, 0.0, 0.0, zeros=1)
        return Operand(zero, "constant")
    return divisor if divisor is not None and divisor.summary.zeros else None


def _kind(birth: TracedBirth, divisor: Operand) -> str:
    said = birth.facts.get("divisor_is")
    if isinstance(said, str) and said not in ("other", "sum"):
        return said
    if divisor.is_integer or _counted_up(divisor):
        return "count"
    if is_energy(divisor) and not divisor.requires_grad:
        return "energy"
    return "sum" if divisor.made_by(*_SUMS, within=4) else (said if isinstance(said, str) else "other")


def _counted_up(operand: Operand) -> bool:
    """Made by counting: a bincount, or the sum of a mask."""
    if operand.made_by(*_COUNTERS, within=8):
        return True
    total = operand.made_by("sum", "index_add", "scatter_add", within=4)
    return total is not None and any(dtype.startswith(("bool", "int", "uint")) for dtype in total.inputs)


def _words(kind: str) -> str:
    return {
        "count": "a count of nothing",
        "sum": "a sum over nothing (or over zeros)",
        "constant": "a constant",
        "other": "a computed value",
    }.get(kind, f"a {kind}")
