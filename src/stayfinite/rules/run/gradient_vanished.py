"""RUN016: gradients that are exactly zero behind a value that was cleaned."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.mechanism.operands import CLAMPS, SANITISERS
from stayfinite.findings.subjects.failed_step import FailedStep


class GradientVanished(Rule[FailedStep]):
    """All gradients are exactly zero, because a bad value was cleaned on the way to a finite loss.

    ## What it finds
    A backward pass that left every gradient at exactly 0, in a step where `nan_to_num`, `clamp` or a similar op
    made a finite number of a NaN or Inf.

    ## Why it is bad
    The loss is finite and constant, no check fires, and nothing is learnt any more.

    ## Example
    `loss = torch.nan_to_num(criterion(model(x), y))` when the model's output is NaN throughout

    ## The fix
    Remove the cleaning op and repair the place where the value was born.

    ## The popular fix that does not work
    The cleaning op itself: it was the fix for the NaN.

    ## References
    ai2cm/ace#949
    """

    code = "RUN016"
    name = "gradient-vanished"
    cause = "WHERE_UNSAFE_BRANCH"
    severity = Severity.WARNING

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        present = [gradient for gradient in subject.gradients if not gradient.missing]
        if not present or not all(gradient.zero for gradient in present):
            return
        if subject.run.history and subject.run.history[-1].loss == 0.0:
            return  # a hinge loss with every margin kept: nothing is left to learn
        for birth in subject.benign:
            cleaned = next((p for p in birth.hidden_by if p.name in (*SANITISERS, *CLAMPS)), None)
            if cleaned is not None and birth.output is not None and birth.output.requires_grad:
                yield self.finding(
                    f"all {len(present)} gradients are exactly 0: {cleaned.name} at line {cleaned.line} hides bad "
                    f"values of {birth.op}",
                    fix=f"remove {cleaned.name} and repair line {birth.birth.line}, where the value is born",
                    evidence={"gradients": len(present), "hidden_by": cleaned.op},
                    file=birth.birth.file,
                    line=birth.birth.line,
                )
                return
