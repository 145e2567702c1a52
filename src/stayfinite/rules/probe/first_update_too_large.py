"""PRB013: a first update that breaks the model, or replaces its weights."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.probed_model import ProbedModel
from stayfinite.rules.probe.phrases import born, evidence, place

_RATIO = 1.0
_AFTER = ("one optimizer step", "the batch after one optimizer step")


class FirstUpdateTooLarge(Rule[ProbedModel]):
    """One optimizer step makes the model not finite, or moves weights by more than their own size.

    ## What it finds
    After one step of the factory's optimizer: parameters with NaN or Inf, a step on the same batch that is not finite
    (errors); or weight matrices whose update is larger than they are (a warning; 0.001 to 0.01 is usual).

    ## Why it is bad
    The initialisation is gone after one step, and what follows starts from wherever the first batch sent it.

    ## Example
    `Adam(model.parameters(), lr=1.0)`

    ## The fix
    Lower the learning rate, or warm it up. Where the optimizer divides by an eps that is zero in float16, no rate
    helps: keep float32 weights.

    ## The popular fix that does not work
    Clipping, with Adam: its first update is the learning rate whatever the gradient is.

    ## References
    PaLM: Scaling Language Modeling with Pathways, section 5.1
    """

    code = "PRB013"
    name = "first-update-too-large"
    cause = "LR_DIVERGENCE"
    severity = Severity.ERROR

    def check(self, subject: ProbedModel) -> Iterator[Finding]:
        for trial in subject.failures("stability"):
            if trial.condition in _AFTER:
                yield self.finding(
                    f"{trial.condition}: {trial.what}{born(trial.located)}",
                    fix=trial.located.fix or "lower the learning rate, or warm it up",
                    evidence=evidence(trial),
                    cause=trial.located.cause or self.cause,
                    **place(trial.located),
                )
        large = [u for u in subject.updates if u.is_weight and u.ratio is not None and u.ratio > _RATIO]
        if large:
            worst = max(large, key=lambda update: update.ratio or 0.0)
            yield self.finding(
                f"one optimizer step moves {worst.name} by {worst.ratio:.3g} times its own size "
                f"({len(large)} weights by more than theirs)",
                fix="lower the learning rate, or warm it up",
                evidence={
                    "battery": "stability",
                    "parameter": worst.name,
                    "ratio": worst.ratio,
                    "weights": len(large),
                },
                severity=Severity.WARNING,
            )
