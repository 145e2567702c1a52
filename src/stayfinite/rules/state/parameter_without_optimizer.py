"""STA005: a trainable parameter that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.setup import Setup


class ParameterWithoutOptimizer(Rule[Setup]):
    """Trainable parameters of the model are in no optimizer, so they will never change.

    ## What it finds
    Parameters with `requires_grad=True` that are in none of the parameter groups of the guarded optimizers.

    ## Why it is bad
    They get gradients (and count in the gradient norm that clips the others) but are never updated. A head that
    was replaced after the optimizer was built is the usual case.

    ## Example
    `opt = SGD(model.parameters(), 0.1); model.head = nn.Linear(64, 10)`

    ## The fix
    Build the optimizer after the model is complete; freeze what must not train with `requires_grad_(False)`.

    ## The popular fix that does not work
    A higher learning rate: the parameters are not in the optimizer at all.

    ## References
    The torch.optim documentation on constructing optimizers.
    """

    code = "STA005"
    name = "parameter-without-optimizer"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: Setup) -> Iterator[Finding]:
        if subject.unheld:
            shown = ", ".join(subject.unheld[:3]) + (", ..." if len(subject.unheld) > 3 else "")
            yield self.finding(
                f"{len(subject.unheld)} trainable parameters are in no optimizer and will never change: {shown}",
                fix="build the optimizer after the model is complete, or freeze them with requires_grad_(False)",
                evidence={"count": len(subject.unheld), "names": list(subject.unheld[:20])},
            )
