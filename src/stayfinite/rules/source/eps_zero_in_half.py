"""SRC003: an eps that float16 rounds to zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile, Value
from stayfinite.rules.source.phrases import at, evidence, unguarded

SMALLEST = 2.0**-24  # the smallest number of float16


class EpsIsZeroInHalf(Rule[SourceFile]):
    """An eps that is meant to protect a float16 value is itself zero in float16.

    ## What it finds
    `x + eps`, `clamp(min=eps)` before a logarithm, root or division, where the source shows that the value
    is float16 (`.half()`, `.to(torch.float16)`, float16 autocast, or a model beside this file that is
    turned into float16 as a whole) and eps is below 6e-8, float16's smallest number.

    ## Why it is bad
    float16(1e-8) is 0. The guard is not there: log(0), 1/0 and sqrt'(0) happen as if it had not been
    written.

    ## Example
    `torch.log(p + 1e-8)` under `torch.autocast("cuda", dtype=torch.float16)`

    ## The fix
    Compute this expression in float32 (`x.float()`), or use an eps that exists: `torch.finfo(x.dtype).tiny`
    (6e-5 for float16) at least. Better: a form that needs no eps (`log_softmax`, `logsigmoid`).

    ## The popular fix that does not work
    A smaller eps "for accuracy". The smallest float16 number is 6e-8, and below 6e-5 precision is lost.

    ## References
    pytorch/pytorch#40497; IEEE 754 binary16: smallest subnormal 2**-24 = 5.96e-8
    """

    code = "SRC003"
    name = "eps-is-zero-in-half"
    cause = "EPS_UNDERFLOW"
    severity = Severity.ERROR

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        names = ("log", "log2", "log10", "sqrt", "rsqrt", "div", "reciprocal", "pow")
        for operation in unguarded(subject, *names):
            value = operation.operands[-1 if operation.name == "div" else 0]
            eps = _eps_of(value)
            if eps is None or not 0 < eps < SMALLEST:
                continue
            where = None
            if value.half:
                where = "the value is float16 here"
            elif (
                value.dtype is None
                and value.known
                and subject.half_model
                and subject.half_model.dtype == "float16"
            ):
                where = (
                    f"the model is turned into float16 at {subject.half_model.file}:{subject.half_model.line}"
                )
                if not value.made_by("softmax", "sigmoid", "relu", "var", "std", depth=4):
                    continue
            if where is None:
                continue
            yield self.finding(
                f"eps {eps:g} before {operation.name} is exactly 0 in float16, and {where}",
                fix="compute it in float32 (x.float()), or use torch.finfo(x.dtype).tiny; a "
                "form without eps is better",
                evidence={**evidence(operation, value), "eps": eps, "smallest_float16": SMALLEST},
                **at(subject, operation),
            )


def _eps_of(value: Value) -> float | None:
    """The number added to, or put below, a value that would otherwise reach zero."""
    made = value.made
    if made is None:
        return None
    if made.name == "add":
        for number, other in ((made.operands[0], made.operands[1]), (made.operands[1], made.operands[0])):
            if number.number is not None and 0 < number.number < 1e-6 and other.number is None:
                return number.number
    if made.name in ("clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "maximum"):
        given = made.option("min", 1)
        return given.number if given is not None else None
    return None
