"""PRB016: which instability comes first at ten times the learning rate."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, place


class UnstableUnderStress(Rule[ProbedModel]):
    """A short run at ten times the learning rate is not finite, or diverges; this is what comes first.

    ## What it finds
    With --stress: the first loss, gradient or parameter that is not finite within 40 steps, or a loss ten times that of
    the first step; and whether the learning rate itself is calm. Information where it is, an error where it is not.

    ## Why it is bad
    Diverging at ten times the rate is usual. What matters is what breaks: a line that gives NaN will do so in a long
    run as well, a loss that merely grows is a matter of the rate.

    ## Example
    `torch.exp(log_var)` without a bound, under Adam at 10 times its rate

    ## The fix
    Repair the line that is named. Where the learning rate itself is not calm: lower it, or warm it up.

    ## The popular fix that does not work
    Clipping by norm, for a value that is born in the forward pass.

    ## References
    Wortsman et al., Small-scale proxies for large-scale Transformer training instabilities, 2023
    """

    code = "PRB016"
    name = "unstable-under-stress"
    cause = "LR_DIVERGENCE"
    severity = Severity.INFO

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        result = subject.stress
        if result is None or not result.first:
            return
        calm = result.calm_at_own_rate
        tail = (
            "; the learning rate itself is calm"
            if calm
            else "; and so it is at the learning rate itself"
            if calm is False
            else ""
        )
        calm_fix = "nothing, if the learning rate stays as it is"
        yield self.finding(
            f"at {result.times:g} times the learning rate, step {result.at_step}: {result.what}"
            f"{born(result.located)}{tail}",
            fix=result.located.fix or ("lower the learning rate or warm it up" if calm is False else calm_fix),
            evidence={"battery": "stress", "first": result.first, "step": result.at_step, "rate": result.rate,
                      "losses": list(result.losses[-8:]), "norms": list(result.norms[-8:])},
            severity=Severity.ERROR if calm is False else Severity.INFO,
            cause=result.located.cause or (self.cause if result.first == "divergence" else "UNKNOWN"),
            **place(result.located),
        )  # fmt: skip
