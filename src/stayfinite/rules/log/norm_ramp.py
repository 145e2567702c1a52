"""LOG003: the gradient norm grew steadily before the failure."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.log import Log, Role
from stayfinite.rules.log.story import place, ramp, rate_text, when

_LEAST = 5.0


class NormRamp(Rule[Log]):
    """The gradient norm, or the loss, grew steadily over the steps before the failure.

    ## What it finds
    A rise by a factor of five or more, spread over several logged values, that leads up to the first value that is
    not finite. One jump is not a ramp; noise is not one either.

    ## Why it is bad
    The run diverged before it broke: the NaN is the end of it, not its cause. Weights from the ramp are damaged too.

    ## Example
    Gradient norms 1.1, 1.9, 4.2, 11, 38, 160, NaN

    ## The fix
    Start from a checkpoint before the ramp with a lower learning rate or a longer warm-up, and let a guard refuse
    norms that stand out.

    ## The popular fix that does not work
    Skipping the NaN step: the weights in front of it have already left.

    ## References
    PaLM (restart before the spike, skip the batches); ZClip, arXiv 2504.02507
    """

    code = "LOG003"
    name = "norm-grew-before-failure"
    cause = "LR_DIVERGENCE"
    severity = Severity.WARNING

    def check(self, subject: Log) -> Iterator[Finding]:
        trouble = subject.trouble
        if trouble is None:
            return
        for role in (Role.NORM, Role.LOSS):
            for series in subject.of_role(role):
                found = ramp(trouble.before.get(series.name, []), _LEAST)
                if found is None:
                    continue
                yield self.finding(
                    f"before it, {series.name} grew from {found.low:.3g} to {found.high:.3g} between "
                    f"{when(subject, found.first)} and {when(subject, found.last)}{rate_text(subject, trouble.around)}",
                    fix=f"start again from before {when(subject, found.first)}, with a lower learning rate or a longer "
                    "warm-up",
                    evidence={
                        "series": series.name,
                        "from_step": found.first.step,
                        "to_step": found.last.step,
                        "low": found.low,
                        "high": found.high,
                    },
                    **place(subject, found.first),
                )
                return
