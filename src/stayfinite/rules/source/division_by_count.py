"""SRC008: a division by a count that can be zero."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile, Value
from stayfinite.rules.source.phrases import at, edit, evidence, level, unprotected

_PADDING = re.compile(r"atten|attn|padding|pad_mask|input_mask")


class DivisionByEmptyCount(Rule[SourceFile]):
    """A sum is divided by a count or mask sum that can be zero: a hand-written mean over nothing.

    ## What it finds
    A divisor that is the sum of a mask, a count of true values or per-class counts, without clamp, eps or
    test. A mask whose origin is not known counts only where the dividend is the masked sum itself, and
    attention or padding masks (which keep at least one token) do not count.

    ## Why it is bad
    A batch in which every label is ignored, every token is prompt or no anchor is positive gives 0/0 = NaN.
    It happens to one batch in thousands, and it poisons the weights.

    ## Example
    `loss = -(x * mask).sum() / mask.sum()`

    ## The fix
    `mask.sum().clamp(min=1)`: 0/1 = 0 for the empty batch, unchanged for every other. `--fix` writes it for
    integer counts.

    ## The popular fix that does not work
    `mask.sum() + 1e-8`: in float16 it is still 0, in bfloat16 and float32 it changes nothing for real
    counts and hides an eps of no meaning. Or `nan_to_num` on the loss: the gradient is NaN all the same.

    ## References
    microsoft/LMOps#38; stayfinite.ops.masked_mean
    """

    code = "SRC008"
    name = "division-by-empty-count"
    cause = "EMPTY_REDUCTION"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in unprotected(subject, "div", operands=2):
            _dividend, divisor = operation.operands[:2]
            if (
                not divisor.has("count")
                or not divisor.reaches(0.0)
                or (divisor.has("class_counts") and divisor.low > 0)
            ):
                continue
            made = divisor.made_by("sum", "count_nonzero", "bincount", "histc", depth=3)
            if made is None or _of_those_counted(subject, operation.text, made):
                continue
            if divisor.has("named"):
                names = " ".join(made.names).lower()
                if _PADDING.search(names) or not operation.text or not _masked_sum(operation.text, made.text):
                    continue
            yield self.finding(
                _sentence(divisor, made),
                fix="clamp the count: mask.sum().clamp(min=1); for per-class counts leave empty classes out",
                evidence={**evidence(operation, divisor), **_edit(made)},
                severity=level(operation, self.severity),
                **at(subject, operation),
            )


def _sentence(divisor: Value, made: Operation) -> str:
    count = f"{_shown(made.text, made.name)} (line {made.line})"
    if divisor.made is not None and divisor.made.name in ("add", "sub"):
        return (
            f"the divisor is 0 for some value of {count}, on which it rests: the quotient is NaN or infinite"
        )
    return f"{count} can be 0, and it is the divisor: a mean over nothing is NaN"


def _of_those_counted(subject: SourceFile, text: str, counting: Operation) -> bool:
    """`1 / counts[ids]` where counts is `bincount(ids)`: what was counted is there once at least."""
    taken = re.search(r"/\s*[\w.]+\[(.+)\]$", text)
    if taken is None or counting.name != "bincount":
        return False
    line = subject.text.splitlines()[counting.line - 1]
    return re.search(rf"bincount\({re.escape(taken.group(1))}[,)]", line) is not None


def _masked_sum(text: str, divisor: str) -> bool:
    """`(x * mask).sum() / mask.sum()`: the same mask above and below."""
    above, _, below = text.partition("/")
    mask = re.search(r"([\w.]+)\.sum\(|sum\(([\w.]+)", divisor or below)
    name = (mask.group(1) or mask.group(2)) if mask else ""
    return (
        bool(name) and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", above) is not None and "sum" in above
    )


def _edit(made: Operation) -> dict[str, object]:
    value = made.operands[0] if made.operands else None
    exact = value is not None and value.kind == "mask" and made.text.endswith(".sum()")
    return edit(made, f"{made.text}.clamp(min=1)") if exact else {}


def _shown(text: str, name: str) -> str:
    """The expression, if it stands on one line; else what it is."""
    whole = bool(text) and text.count("(") == text.count(")")
    return f"`{text}`" if whole else f"the {name}"
