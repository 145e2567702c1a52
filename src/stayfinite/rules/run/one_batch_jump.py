"""RUN014: one batch makes loss and gradient norm jump (in a traced run)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StepRecord
from stayfinite.rules.evidence import at

_JUMP = 30.0
_HEALTHY_STEPS = 5
_RECENT, _AFTERMATH = 32, 16  # steps before a jump that it is compared with, and after it that show the harm
_HARM = 3.0  # the loss stays so many times above the largest before
_ENORMOUS = 1e5  # so large a jump stays in the moments for thousands of steps, whatever the loss does


class OneBatchJump(Rule[FailedStep]):
    """The steps before were calm, and this one batch makes the loss or its gradient jump.

    ## What it finds
    A failing step whose loss, gradient norm or inputs are 30 times the median of at least five calm steps before
    it; and, in a run that stayed finite, an applied step whose loss and gradient norm are both a hundred times
    the largest of the 32 before, after which the loss stays above what it was (or so large that the moments keep it).

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
        if subject.complete and not subject.births:
            yield from self._applied_spike(subject)
            return
        if len(subject.history) <= _HEALTHY_STEPS:
            return
        jumped = [
            (name, *found)
            for name, values in _quantities(subject.history)
            if (found := _jump(values)) is not None
        ]
        if not jumped:
            return
        name, value, usual = jumped[0]
        birth = subject.birth
        by_input = jumped[-1][0] == "largest input"
        yield self.finding(
            f"the {name} jumped to {value:.3g} in one step, from a calm {usual:.3g}",
            fix="skip this batch and look at its samples; if the update was applied, roll back to the step before",
            evidence={name: {"value": value, "usual": usual} for name, value, usual in jumped},
            confidence=0.85 if birth is None or by_input else 0.6,
            **(at(birth) if birth is not None else {"file": None, "line": None}),
        )

    def _applied_spike(self, step: FailedStep) -> Iterator[Finding]:
        """A finished, finite run in which one batch was applied that stood far above all before it, and did harm."""
        records = [r for r in step.history if r.applied and r.loss is not None and r.grad_norm is not None]
        first = [abs(r.loss) for r in step.first_steps if r.loss is not None]
        stepped = step.optimizers[0].stepped if step.optimizers else None
        for position in range(_HEALTHY_STEPS + 3, len(records)):
            before, now = records[max(0, position - _RECENT) : position], records[position]
            loss = _stands_out([r.loss for r in before], now.loss)
            norm = _stands_out([r.grad_norm for r in before], now.grad_norm)
            # A loss that is small beside the first ones of the run is no damage, however far it jumped.
            if loss is None or norm is None or loss[0] <= max(first, default=0.0):
                continue
            after = [
                abs(r.loss) for r in records[position + 1 : position + 1 + _AFTERMATH] if r.loss is not None
            ]
            level = median(after) if len(after) >= _HEALTHY_STEPS else loss[0]
            if level <= _HARM * loss[1] and loss[0] < _ENORMOUS * loss[1]:
                continue  # the next losses are what they were: the optimizer took it well
            yield self.finding(
                f"step {now.step} was applied with a loss of {loss[0]:.3g} (before: {loss[1]:.3g}) and a gradient norm "
                f"of {norm[0]:.3g} (before: {norm[1]:.3g}): one batch stands out; the losses after it: {level:.3g}",
                fix="skip such a batch before the step (compare it with recent steps) and look at its samples",
                evidence={
                    "step": now.step,
                    "loss": loss[0],
                    "grad_norm": norm[0],
                    "input": now.input_absmax,
                    "loss_after": level,
                },
                confidence=0.85,
                file=stepped.file if stepped else None,
                line=stepped.line if stepped else None,
            )
            return


def _quantities(history: Sequence[StepRecord]) -> Iterator[tuple[str, list[float | None]]]:
    yield "loss", [abs(r.loss) if r.loss is not None else None for r in history]
    yield "gradient norm", [r.grad_norm for r in history]
    # An input that is not finite is no jump: it is data that is not there (DAT010).
    yield "largest input", [r.input_absmax if math.isfinite(r.input_absmax or 0.0) else None for r in history]


def _stands_out(before: Sequence[float | None], now: float | None) -> tuple[float, float] | None:
    """The value and the largest shortly before it, when it is a hundred times as large."""
    known = [abs(value) for value in before if value is not None and math.isfinite(value)]
    if now is None or not math.isfinite(now) or len(known) < _HEALTHY_STEPS:
        return None
    return (abs(now), max(known)) if abs(now) > 100 * max(known) else None


def _jump(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The last value and the usual one, when the last stands out from calm values before it."""
    before = [v for v in values[:-1] if v is not None and math.isfinite(v)]
    last = values[-1]
    if last is None or math.isnan(last) or len(before) < _HEALTHY_STEPS:
        return None
    usual = median(before)
    calm = max(before[-_HEALTHY_STEPS:]) < _JUMP * max(usual, 1e-30)
    return (last, usual) if calm and last > _JUMP * max(usual, 1e-30) else None
