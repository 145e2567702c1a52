"""STA040: a gradient penalty made of gradients that still hold the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import depth_of_run_cause

_OFTEN = 3


class PenaltyOfScaledGradients(Rule[FailedStep]):
    """Gradients of a scaled loss went into another loss, still multiplied by the loss scale.

    ## What it finds
    `torch.autograd.grad(scaler.scale(...), ..., create_graph=True)` in several steps of a script that never asks the
    scaler for its scale, so it cannot have divided by it.

    ## Why it is bad
    The penalty compares gradients that are thousands of times too large with 1: the model is pushed flat, and how far
    depends on a scale that changes while training. Every number is finite.

    ## Example
    `g = torch.autograd.grad(scaler.scale(critic(x).sum()), x, create_graph=True)[0]; ((g.norm(2, 1) - 1) ** 2).mean()`

    ## The fix
    Divide first: `inv = 1 / scaler.get_scale(); g = g * inv`. Then build the penalty, and scale the whole loss.

    ## The popular fix that does not work
    A smaller weight for the penalty: right for one scale, wrong after the next growth or back-off.

    ## References
    pytorch/pytorch#44667
    """

    code = "STA040"
    name = "penalty-of-scaled-gradients"
    cause = "SCALER_MISUSE"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001", "NUM025", "NUM021")

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for scaler in subject.run.scalers:
            if scaler.penalties >= _OFTEN and scaler.init_scale > 1.0:
                yield self.finding(
                    f"{scaler.penalties} gradients of a scaled loss became part of another loss, not divided by the "
                    f"scale ({scaler.scale:g} now)",
                    fix="divide these gradients by scaler.get_scale() before the penalty is computed",
                    evidence={"gradients": scaler.penalties, "scale": scaler.scale},
                    depth=depth_of_run_cause(subject),
                    place=scaler.penalty,
                )
