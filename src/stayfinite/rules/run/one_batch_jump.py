"""RUN014: one batch makes loss and gradient norm jump (in a traced run)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.rules.evidence import at

_JUMP = 30.0
_HEALTHY_STEPS = 5


class OneBatchJump(Rule[FailedStep]):
    """The steps before were calm, and this one batch makes the loss or its gradient jump.

    ## What it finds
    A failing step whose last finite loss or gradient norm is 30 times the median of at least five calm steps
    before it, or whose inputs are.

    ## Why it is bad
    One such update can undo hours of training, and the moments carry it on. It is the batch, not the rate: the
    steps before did not grow.

    ## Example
    A corrupt record with values a thousand times too large

    ## The fix
    Skip the batch, note its samples, look at them; roll back if the update was applied.

    ## The popular fix that does not work
    A fixed threshold: too high late in training, too low at its start, and False for NaN.

    ## References
    facebookresearch/metaseq#521, ultralytics/ultralytics#24986
    """

    code = "RUN014"
    name = "one-batch-jump"
    cause = "BAD_BATCH_SPIKE"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if len(subject.history) <= _HEALTHY_STEPS or (subject.complete and subject.trigger != "spike"):
            return
        jumped = [
            (name, value, usual)
            for name, values in (
                ("loss", [abs(r.loss) if r.loss is not None else None for r in subject.history]),
                ("gradient norm", [r.grad_norm for r in subject.history]),
                ("largest input", [r.input_absmax for r in subject.history]),
            )
            if (found := _jump(values)) is not None
            for value, usual in (found,)
        ]
        if not jumped:
            return
        name, value, usual = jumped[0]
        birth = subject.birth
        spike = subject.trigger == "spike" and birth is None
        yield self.finding(
            f"the {name} jumped to {value:.3g} in one step, from a calm {usual:.3g}",
            fix="skip this batch and look at its samples; if the update was applied, roll back to the step before",
            evidence={name: {"value": value, "usual": usual} for name, value, usual in jumped},
            confidence=0.85 if spike or jumped[-1][0] == "largest input" else 0.6,
            **(at(birth) if birth is not None else {"file": None, "line": None}),
        )


def _jump(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The last value and the usual one, when the last stands out from calm values before it."""
    before = [v for v in values[:-1] if v is not None and math.isfinite(v)]
    last = values[-1]
    if last is None or math.isnan(last) or len(before) < _HEALTHY_STEPS:
        return None
    usual = median(before)
    calm = max(before[-_HEALTHY_STEPS:]) < _JUMP * max(usual, 1e-30)
    return (last, usual) if calm and last > _JUMP * max(usual, 1e-30) else None
