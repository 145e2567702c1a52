"""NUM018: a bad value hidden in the forward pass that returns in the gradient."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.mechanism.operands import behind
from stayfinite.findings.mechanism.rounded import rounded_by
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import judged, told

_SAFE_INPUT = (
    "replace the input of the op where it is not used: x_safe = torch.where(ok, x, 1.0), then "
    "torch.where(ok, f(x_safe), 0.0)"
)
_ROUNDED = (
    "these zeros are numbers that were rounded to 0: compute the logarithm in log space (F.logsigmoid, F.log_softmax, "
    "torch.logaddexp). A 1 in their place, as in a double where, would be a loss of 0 for a sample that is not hidden"
)


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
        for born in judged(subject, Kind.HIDDEN):
            yield self.finding(
                f"{behind(born.birth)} made bad values that {born.how.word} hides in the forward pass; its gradient "
                "brings them back",
                fix=_SAFE_INPUT if rounded_by(born.birth) is None else _ROUNDED,
                **told(born, hidden_by=born.how.word, node=born.birth.node),
            )
