"""PRB005: parameters that are never trained."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel

_NAMED = 4


class ParameterWithoutGradient(Rule[ProbedModel]):
    """A parameter that should be trained gets no gradient, or one that is exactly zero.

    ## What it finds
    Parameters with requires_grad whose gradient is missing or zero throughout, and still is after the other parameters
    have moved a little (branches that are zero at the start, such as adapters and gates, pass).

    ## Why it is bad
    They stay as they were initialised (weight decay aside): a part of the model is noise.

    ## Example
    `h = self.encoder(x).detach()`, or a layer that forward does not call

    ## The fix
    Look for detach(), no_grad(), .item(), argmax, a layer that is not called, or units that are dead from the start.

    ## The popular fix that does not work
    `find_unused_parameters=True`: it lets the run go on without training them.

    ## References
    pytorch/pytorch#46849
    """

    code = "PRB005"
    name = "parameter-without-gradient"
    cause = "CONFIG_MISTAKE"
    severity = Severity.WARNING

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        silent = [g for g in subject.gradients if (g.missing or g.zero) and g.later_zero]
        if not silent or subject.cuts or subject.failures("gradient"):
            return  # a clamp that cuts everything, or a NaN, is the better explanation
        names = ", ".join(g.name for g in silent[:_NAMED]) + (
            f" and {len(silent) - _NAMED} more" if len(silent) > _NAMED else ""
        )
        missing = sum(g.missing for g in silent)
        zero = len(silent) - missing
        how = " and ".join(
            p
            for p in (
                f"{missing} have no gradient" if missing else "",
                f"{zero} have one of exactly 0" if zero else "",
            )
            if p
        )
        yield self.finding(
            f"of {len(subject.gradients)} parameters {how}: {names}",
            fix="look for detach(), no_grad(), argmax, a layer that is not called, or units dead from the start",
            evidence={
                "battery": "gradient",
                "parameters": [g.name for g in silent],
                "of": len(subject.gradients),
            },
        )
