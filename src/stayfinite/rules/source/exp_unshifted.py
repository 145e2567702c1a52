"""SRC011: a softmax, softplus, sigmoid or logsumexp written by hand, without subtracting the maximum."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile, Value
from stayfinite.rules.source.phrases import at, edit, evidence


class ExpWithoutMaxSubtraction(Rule[SourceFile]):
    """An exponential of unbounded values is normalised or logged by hand, without the maximum being subtracted.

    ## What it finds
    `exp(x) / exp(x).sum()` (also by scatter or index_add), `log(sum(exp(x)))`, `log(1 + exp(x))`, `exp(x) /
    (1 + exp(x))` where nothing bounds x from above.

    ## Why it is bad
    exp overflows at 88.7 in float32 and at 11.09 in float16. The quotient is then inf/inf = NaN, and
    log(inf) has a NaN gradient, although the function itself is tame.

    ## Example
    `x * torch.tanh(torch.log(1 + torch.exp(x)))`

    ## The fix
    The fused forms: `torch.softmax`, `torch.logsumexp`, `F.softplus`, `torch.sigmoid`; for groups subtract
    each group's maximum first. `--fix` rewrites one-line softplus and logsumexp.

    ## The popular fix that does not work
    Clamping the logits: it changes the function and its gradient is zero beyond the clamp.

    ## References
    pyg-team/pytorch_geometric#53, hunglc007/tensorflow-yolov4-tflite#138
    """

    code = "SRC011"
    name = "exp-without-max-subtraction"
    cause = "EXP_OVERFLOW"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        told: set[tuple[int, int]] = set()
        for operation in subject.named("div", "log", "log1p"):
            found = _by_hand(operation)
            if found is None:
                continue
            exponential, what, stable = found
            if (exponential.line, exponential.column) in told or operation.guarded:
                continue
            told.add((exponential.line, exponential.column))
            yield self.finding(
                f"{what} by hand: exp at line {exponential.line} overflows above 88 (11 in float16), "
                "and nothing bounds its argument",
                fix=f"use {stable}; for groups subtract the group's maximum before exp",
                evidence={**evidence(exponential), **_edit(operation, exponential, what)},
                **at(subject, exponential),
            )


def _by_hand(operation: Operation) -> tuple[Operation, str, str] | None:
    """(the exponential, what was rebuilt, what to use)."""
    if operation.name == "div" and len(operation.operands) == 2:
        dividend, divisor = operation.operands
        above = dividend.made
        if above is None or above.name != "exp" or not _unbounded(above):
            return None
        if any(
            made is above or (made.name == "exp" and made.text == above.text) for made in divisor.chain(5)
        ):
            one = divisor.made is not None and divisor.made.name == "add" and divisor.low >= 1
            if one:
                return (above, "a sigmoid", "torch.sigmoid(x)")
            return (above, "a softmax", "torch.softmax(x, dim)")
        return None
    made = operation.operands[0].made if operation.operands else None
    if made is None or operation.operands[0].low < 0:
        return None
    if made.name == "exp" and operation.name == "log1p" and _unbounded(made):
        return made, "a softplus", "F.softplus(x)"
    if made.name == "add" and operation.name == "log":
        for constant, other in (made.operands, made.operands[::-1]):
            inner = other.made
            if constant.number == 1 and inner is not None and inner.name == "exp" and _unbounded(inner):
                return inner, "a softplus", "F.softplus(x)"
    if made.name == "sum" and operation.name == "log":
        inner = made.operands[0].made if made.operands else None
        if inner is not None and inner.name == "exp" and _unbounded(inner):
            return inner, "a logsumexp", "torch.logsumexp(x, dim)"
    return None


def _unbounded(exponential: Operation) -> bool:
    value = exponential.operands[0] if exponential.operands else Value()
    return (
        value.high > 88 and not value.has("shifted") and not value.has("clamped") and value.kind != "number"
    )


def _edit(operation: Operation, exponential: Operation, what: str) -> dict[str, object]:
    """Exact replacements of forms that stand on one line."""
    match = re.fullmatch(r"torch\.exp\((.*)\)|([\w.]+)\.exp\(\)", exponential.text)
    if match is None:
        return {}
    inner = match.group(1) or match.group(2)
    text = exponential.text
    if what == "a softplus":
        forms: tuple[str, ...] = (
            f"torch.log(1 + {text})",
            f"torch.log({text} + 1)",
            f"torch.log1p({text})",
            f"{text}.log1p()",
        )
        forms += (f"torch.log(1.0 + {text})", f"(1 + {text}).log()")
        return edit(operation, f"torch.nn.functional.softplus({inner})") if operation.text in forms else {}
    if what == "a logsumexp":
        rest = re.fullmatch(rf"torch\.log\(torch\.sum\({re.escape(text)}, (.+)\)\)", operation.text)
        rest = rest or re.fullmatch(rf"torch\.log\({re.escape(text)}\.sum\(([^()]+)\)\)", operation.text)
        return edit(operation, f"torch.logsumexp({inner}, {rest.group(1)})") if rest else {}
    return {}
