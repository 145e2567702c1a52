"""SRC018: bad gradients set to zero, and the optimizer steps all the same."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.source_file import SourceFile
from stayfinite.rules.source.phrases import at


class ZeroedGradientsStepped(Rule[SourceFile]):
    """Bad gradients are set to zero and the optimizer steps all the same.

    ## What it finds
    A test for NaN, Inf or a large loss whose body zeroes gradients and does not leave the step, while an
    optimizer step follows.

    ## Why it is bad
    A step with zero gradients is no skipped step: momentum and weight decay still move the weights (100
    AdamW steps with zero gradients move a weight by about 12 learning rates), and the second moment decays.

    ## Example
    `if torch.isnan(norm): p.grad.zero_()` followed by `optimizer.step()`

    ## The fix
    Leave the update out: `optimizer.zero_grad(); continue`.

    ## The popular fix that does not work
    Multiplying the update by 0: 0 times NaN is NaN.

    ## References
    ultralytics/ultralytics#24986; torch.optim.AdamW documentation
    """

    code = "SRC018"
    name = "zeroed-gradients-stepped"
    cause = "BLIND_GUARD"
    severity = Severity.WARNING

    def check(self, subject: SourceFile) -> Iterator[Finding]:
        for facts in subject.functions:
            for guard in facts.guards:
                bad = (*guard.finite, *guard.only_nan)
                if not (bad and guard.zeroes and guard.steps_after) or guard.skips:
                    continue
                yield self.finding(
                    f"`if {guard.test}` zeroes gradients, but the optimizer steps: momentum "
                    "and weight decay still move weights",
                    fix="leave the update out: optimizer.zero_grad(); continue",
                    evidence={"test": guard.test},
                    **at(subject, guard),
                )
