"""RUN001: one batch makes loss and gradient norm jump."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.outlier_batch import OutlierBatch, outlier_batch
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StepRecord
from stayfinite.rules.evidence import depth_of_run_cause

_JUMP, _HARMFUL = 30.0, 100.0
_HEALTHY_STEPS = 5
_RECENT, _AFTERMATH = 32, 16  # steps before a jump that it is compared with, and after it that show the harm
_HARM = 3.0  # the loss stays so many times above the largest before
_LAST, _UNUSUAL = 6, 5.0  # updates before a step, and how many times the usual size
# times the usual loss; that of the steps beside it; steps to know it by
_ABSURD, _NEAR, _FEWEST = 1e6, 1e3, 10
_ENORMOUS = 1e5  # so large a jump stays in the moments for thousands of steps, whatever the loss does


class BadBatchSpike(Rule[FailedStep]):
    """One batch makes the loss and the gradient norm jump far beyond the run's own noise.

    ## What it finds
    A finite loss and gradient norm that both stand out from the last 128 healthy steps: more than ten robust
    deviations and three times the worst recent excess (or a hundred times the largest value), and large in
    themselves. In a run that failed or is over: a step thirty times (a hundred times, if it was applied and did
    harm) above the calm steps before it; single steps with a loss a million times that of their neighbours.

    ## Why it is bad
    One such update can undo hours of training; the moments carry it on for many steps.

    ## Example
    A corrupt record with values a thousand times too large.

    ## The fix
    Skip the batch (the guard did), note its samples, look at them.

    ## The popular fix that does not work
    A fixed threshold (`if loss > 100`): too high late in training, too low at its start, and False for NaN.

    ## References
    facebookresearch/metaseq#521
    """

    code = "RUN001"
    name = "bad-batch-spike"
    cause = "BAD_BATCH_SPIKE"
    severity = Severity.WARNING

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        if subject.spikes:
            said = ", ".join(
                f"{s.quantity} {s.value:.3g} (typically {s.typical:.3g})" for s in subject.spikes
            )
            yield self.finding(
                f"the step stands out from the recent ones: {said}",
                fix="look at the samples of this batch; if it is right, use Policy(spikes='warn')",
                evidence={s.quantity: {"value": s.value, "typical": s.typical} for s in subject.spikes},
            )
        elif subject.run.complete and not subject.births:
            found = list(self._applied_spike(subject)) or list(self._absurd_losses(subject))
            yield from found
        elif (outlier := outlier_batch(subject.run.history)) is not None:
            yield self._never_came_back(subject, outlier)
        else:
            yield from self._jump(subject)

    def _never_came_back(self, step: FailedStep, outlier: OutlierBatch) -> Finding:
        """The failure is the end of what one batch began, however many steps ago."""
        now = outlier.record
        return self.finding(
            f"step {now.step} was applied with a loss of {abs(now.loss or 0.0):.3g} (at most {outlier.loss:.3g} in the "
            f"steps before) and a gradient norm of {now.grad_norm:.3g} (at most {outlier.grad_norm:.3g}), after "
            f"updates of the usual size: that batch stands out, and the loss never came back",
            fix=f"go back to before step {now.step}, skip its batch and look at its samples and targets; clipping "
            "(clip_grad_norm_) bounds what one batch can do",
            evidence={
                "step": now.step,
                "loss": now.loss,
                "grad_norm": now.grad_norm,
                "input": now.input_absmax,
                "before": {"loss": outlier.loss, "grad_norm": outlier.grad_norm},
            },
            severity=Severity.ERROR,
            depth=depth_of_run_cause(step),
            place=step.run.optimizers[0].stepped if step.run.optimizers else None,
        )

    def _jump(self, step: FailedStep) -> Iterator[Finding]:
        """The steps before were calm, and this one failed at a multiple of what was usual."""
        jumped = [
            (name, *found)
            for name, values in _quantities(step.run.history)
            if (found := _stands_out(values[:-1], values[-1], _JUMP)) is not None
        ]
        if not jumped:
            return
        name, value, usual = jumped[0]
        birth = step.birth.birth if step.birth is not None else None
        yield self.finding(
            f"the {name} jumped to {value:.3g} in one step, from a calm {usual:.3g}",
            fix="skip this batch and look at its samples; if the update was applied, roll back to the step before",
            evidence={name: {"value": value, "usual": usual} for name, value, usual in jumped},
            severity=Severity.ERROR,
            depth=depth_of_run_cause(step),
            file=birth.file if birth is not None else None,
            line=birth.line if birth is not None else None,
        )

    def _applied_spike(self, step: FailedStep) -> Iterator[Finding]:
        """A finished, finite run in which one batch was applied that stood far above all before it, and did harm."""
        records = [
            r for r in step.run.history if r.applied and r.loss is not None and r.grad_norm is not None
        ]
        first = [abs(r.loss) for r in step.run.first_steps if r.loss is not None]
        for position in range(_HEALTHY_STEPS + 3, len(records)):
            before, now = records[max(0, position - _RECENT) : position], records[position]
            loss = _stands_out([r.loss for r in before], now.loss, _HARMFUL)
            norm = _stands_out([r.grad_norm for r in before], now.grad_norm, _HARMFUL)
            # A loss that is small beside the first ones of the run is no damage, however far it jumped.
            if loss is None or norm is None or loss[0] <= max(first, default=0.0):
                continue
            if _had_grown(records[:position]):
                continue  # the updates before it were no usual ones: it may be the weights, and not the batch
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
                severity=Severity.ERROR,
                place=step.run.optimizers[0].stepped if step.run.optimizers else None,
            )
            return

    def _absurd_losses(self, step: FailedStep) -> Iterator[Finding]:
        """A finished run in which single steps had a loss a million times that of the steps around them."""
        known = [r for r in step.run.history if r.applied and r.loss is not None and math.isfinite(r.loss)]
        losses = [abs(r.loss or 0.0) for r in known]
        if len(losses) < _FEWEST:
            return
        usual = median(losses)
        far = [n for n, loss in enumerate(losses) if loss > _ABSURD * max(usual, 1.0)]
        alone = all(max(losses[n - 1 : n] + losses[n + 1 : n + 2]) < _NEAR * max(usual, 1.0) for n in far)
        if not far or not alone or len(far) > len(losses) // 4:
            return
        steps, largest = [known[n] for n in far], max(losses[n] for n in far)
        inputs = max((r.input_absmax or 0.0 for r in steps), default=0.0)
        holds = f"; the batch holds values up to {inputs:.3g}" if inputs > _ENORMOUS else ""
        where = f"step {steps[0].step}" if len(steps) == 1 else f"{len(steps)} steps (first {steps[0].step})"
        yield self.finding(
            f"in {where} the loss was up to {largest:.3g}, and about {usual:.3g} in the others: something in such a "
            f"batch, an input or a target, is out of range{holds}",
            fix="look at the samples of that batch, inputs and targets; reject what is out of range where it is read",
            evidence={"step": steps[0].step, "steps": len(steps), "loss": largest, "usual": usual},
            severity=Severity.ERROR,
            place=step.run.optimizers[0].stepped if step.run.optimizers else None,
        )


def _had_grown(records: Sequence[StepRecord]) -> bool:
    """One of the last updates was many times as large as usual."""
    moved = [r.update_ratio for r in records if r.update_ratio is not None]
    return len(moved) > _LAST and max(moved[-_LAST:]) > _UNUSUAL * median(moved[:-_LAST])


def _quantities(history: Sequence[StepRecord]) -> Iterator[tuple[str, list[float | None]]]:
    if not history:
        return
    yield "loss", [abs(r.loss) if r.loss is not None else None for r in history]
    yield "gradient norm", [r.grad_norm for r in history]
    # An input that is not finite is no jump: it is data that is not there (DAT001).
    yield "largest input", [r.input_absmax if math.isfinite(r.input_absmax or 0.0) else None for r in history]


def _stands_out(
    before: Sequence[float | None], now: float | None, factor: float
) -> tuple[float, float] | None:
    """The value and the largest shortly before it, when it is `factor` times as large. Inf is no spike."""
    known = [abs(value) for value in before if value is not None and math.isfinite(value)]
    if now is None or not math.isfinite(now) or len(known) < _HEALTHY_STEPS:
        return None
    usual = max(known[-_RECENT:])
    return (abs(now), usual) if abs(now) > factor * max(usual, 1e-30) else None
