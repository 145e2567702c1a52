"""SRC014: torch.where with a branch that is not finite where it is not taken."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence

_SINGULAR = ("log", "log2", "log10", "sqrt", "rsqrt", "div", "reciprocal", "acos", "asin", "atanh", "pow")
_COMPARISON = re.compile(r"(?P<left>[\w.]+)\s*(?P<sign><=?|>=?)\s*(?P<right>-?[\w.]+)")
_ARGUMENT = re.compile(
    r"([\w.]*\b(log2|log10|log|sqrt|rsqrt|reciprocal)\((?P<mirror>-(torch\.)?expm1\()?|.*/\s*)(?P<name>[\w.]+)\)*"
)


class WhereWithUnsafeBranch(Rule[SourceFile]):
    """A branch of torch.where is not finite where it is not taken, and its gradient comes back as NaN.

    ## What it finds
    `torch.where(cond, f(x), c)` with f a division, log, root, power below one or inverse function of a
    variable that the condition tests, computed on all of x.

    ## Why it is bad
    The forward picks the good branch. The backward computes both and multiplies the unused one by 0: 0
    times Inf is NaN.

    ## Example
    `torch.where(x > 0, torch.log(x), torch.zeros_like(x))`

    ## The fix
    Make the argument safe first (the double where): `safe = torch.where(x > 0, x, torch.ones_like(x))`,
    then `torch.where(x > 0, torch.log(safe), 0)`.

    ## The popular fix that does not work
    `nan_to_num` on the result: the forward was never the problem.

    ## References
    pytorch/pytorch#36923, pytorch/pytorch#52248
    """

    code = "SRC014"
    name = "where-with-unsafe-branch"
    cause = "WHERE_UNSAFE_BRANCH"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for operation in subject.named("where"):
            if len(operation.operands) < 3 or operation.no_grad:
                continue
            condition = operation.operands[0]
            if condition.made is None:
                continue
            tested = _tested(condition.made)
            for taken, branch in zip((True, False), operation.operands[1:3], strict=True):
                made = branch.made or (branch.reference if isinstance(branch.reference, Operation) else None)
                unsafe = _unsafe(made, tested)
                if unsafe is None or branch.grad is False or not _at_pole(condition.made, taken, unsafe):
                    continue
                yield self.finding(
                    f"the branch `{unsafe.text or unsafe.name}` is not finite where the condition is "
                    f"{'false' if taken else 'true'}, and the gradient of the branch not taken is NaN",
                    fix="make its argument safe first: safe = torch.where(cond, x, 1.0); "
                    "torch.where(cond, f(safe), other)",
                    evidence={**evidence(operation), "unsafe": unsafe.text, "unsafe_line": unsafe.line},
                    **at(subject, operation),
                )
                break


def _tested(condition: Operation) -> frozenset[str]:
    """The variables that are tested. The threshold of a Huber loss, `abs_x < beta`, is not one of them."""
    sides = _COMPARISON.fullmatch(condition.text)
    if sides is None or any(side.number is not None or side.has("eps") for side in condition.operands[:1]):
        return condition.names
    return condition.names - {sides["right"]}


def _at_pole(condition: Operation, taken: bool, unsafe: Operation) -> bool:
    """Where the branch is not taken its function has a pole; what cannot be told counts as yes."""
    sides = _COMPARISON.fullmatch(condition.text)
    right = condition.options.get("right")
    limit = right.number if right is not None else None
    argument = _ARGUMENT.fullmatch(unsafe.text)
    if sides is None or limit is None or argument is None or argument["name"] != sides["left"]:
        return True
    below = (sides["sign"][0] == "<") is not taken  # the branch is left out below the limit, or above it
    at_limit = ("=" in sides["sign"]) is not taken
    if unsafe.name not in ("div", "reciprocal") and below is not bool(argument["mirror"]):
        return True  # log(x) is bad for all x <= 0, log(-expm1(x)) for all x >= 0
    return (limit > 0 if below else limit < 0) or (limit == 0 and at_limit)


def _unsafe(made: Operation | None, tested: frozenset[str]) -> Operation | None:
    """An operation with a pole whose own argument is what the condition tests, nothing having been clamped."""
    if made is None or made.name not in _SINGULAR or not made.operands:
        return None
    value = made.operands[1] if made.name == "div" and len(made.operands) > 1 else made.operands[0]
    if value.number is not None or tested.isdisjoint(made.names):
        return None
    if value.has("clamped") or value.has("selected") or (value.known and not value.reaches(0.0)):
        return None
    if made.name == "pow":
        number = made.operands[1].number if len(made.operands) > 1 else None
        if number is None or not (number < 0 or 0 < number < 1):
            return None
    text = made.text.partition("/")[2] if made.name == "div" else made.text
    return made if any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) for name in tested) else None
