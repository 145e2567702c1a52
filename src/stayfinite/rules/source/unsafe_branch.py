"""SRC014: torch.where with a branch that is not finite where it is not taken."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import Operation, SourceFile
from stayfinite.rules.source.phrases import at, evidence

_SINGULAR = ("log", "log2", "log10", "sqrt", "rsqrt", "div", "reciprocal", "acos", "asin", "atanh", "pow")


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
            tested = condition.made.names
            for branch in operation.operands[1:3]:
                made = branch.made or (branch.reference if isinstance(branch.reference, Operation) else None)
                unsafe = _unsafe(made, tested)
                if unsafe is None or branch.grad is False:
                    continue
                yield self.finding(
                    f"the branch `{unsafe.text or unsafe.name}` is not finite where the condition is false, "
                    "and the gradient of the branch not taken is NaN",
                    fix="make its argument safe first: safe = torch.where(cond, x, 1.0); "
                    "torch.where(cond, f(safe), other)",
                    evidence={**evidence(operation), "unsafe": unsafe.text, "unsafe_line": unsafe.line},
                    **at(subject, operation),
                )
                break


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
