"""NUM018: a bad value hidden in the forward pass that returns in the gradient."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.traced_birth import Operand, TracedBirth
from stayfinite.rules.evidence import CLAMPS, SANITISERS, at, behind, births_by_weight, tensors

_SINGULAR = ("sqrt", "rsqrt", "pow", "log", "log2", "log10", "log1p", "div", "reciprocal", "exp", "expm1", "mul",
             "acos", "asin", "atanh", "acosh", "xlogy", "norm", "linalg_vector_norm", "atan2", "tan", "logit",
             "sinh", "cosh", "exp2", "cumsum", "prod")  # fmt: skip
_SELECTIONS = ("index", "masked_select", "slice", "select", "gather")


class HiddenBranchGradient(Rule[FailedStep]):
    """The forward pass hides a bad value with where, nan_to_num or nansum, and the gradient brings it back.

    ## What it finds
    A finite loss with a NaN gradient, where a bad (or singular) value was replaced in the forward pass by
    `torch.where`, `masked_fill`, `nan_to_num`, `nansum` or a selection, and the backward formula of the op that
    made it computes 0 * inf or 0 / 0.

    ## Why it is bad
    Autograd runs through both branches. The branch that was not taken gets the gradient 0, and 0 times an
    infinite derivative is NaN. The loss curve is finite, so nobody looks at the branch.

    ## Example
    `y = torch.where(x > 0, torch.sqrt(x), 0.0)` at x = 0

    ## The fix
    Make the *input* harmless, twice where: `safe = torch.where(x > 0, x, 1.0); y = torch.where(x > 0,
    torch.sqrt(safe), 0.0)`.

    ## The popular fix that does not work
    Cleaning the output with `nan_to_num`, `nansum` or a mask: the forward pass was clean already.

    ## References
    pytorch/pytorch#36923, pytorch/pytorch#52248, ai2cm/ace#949
    """

    code = "NUM018"
    name = "hidden-branch-gradient"
    cause = "WHERE_UNSAFE_BRANCH"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        in_gradient = subject.sink is not None and subject.sink.kind in ("gradient", "parameter")
        if not in_gradient and not any(birth.phase == "backward" for birth in subject.births):
            return
        for birth, weight in births_by_weight(subject):
            found = _hidden(birth)
            if found is None:
                continue
            by, certain = found
            yield self.finding(
                f"{behind(birth)} made bad values that {by} hides in the forward pass; its gradient brings them back",
                fix="replace the input of the op where it is not used: x_safe = torch.where(ok, x, 1.0), then "
                "torch.where(ok, f(x_safe), 0.0)",
                evidence={"inputs": tensors(*birth.operands), "hidden_by": by, "node": birth.node},
                confidence=certain * weight,
                **at(birth),
            )


def _hidden(birth: TracedBirth) -> tuple[str, float] | None:
    """What hides the value, and how sure that is."""
    for producer in birth.hidden_by:
        if producer.name in _SELECTIONS:
            continue
        if producer.name in SANITISERS:
            # What a softmax over nothing made is known better by its own rule.
            return f"{producer.name} (line {producer.line})", 0.75 if "softmax" in birth.op else 0.95
    for producer in birth.hidden_by:
        if producer.name in _SELECTIONS:
            return f"a selection (line {producer.line})", 0.55
    for producer in birth.hidden_by:
        if producer.name in CLAMPS and birth.phase != "backward":
            return f"{producer.name} (line {producer.line})", 0.7
    if birth.phase == "backward" and behind(birth) in _SINGULAR:
        gradient = _incoming(birth)
        if gradient is not None and gradient.summary.zeros:
            made = gradient.made_by("where", "masked_fill", within=5)
            if made is not None:
                return f"{made.name} (line {made.line})", 0.94
    return None


def _incoming(birth: TracedBirth) -> Operand | None:
    """The gradient that came from above."""
    named = birth.operand("grad", "grad_output", "grad_outputs")
    if named is not None:
        return named
    return next((o for o in birth.operands if o.made_by("where", "masked_fill", within=5)), None)
