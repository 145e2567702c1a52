"""STA020: state that outlives the step holds NaN or Inf (in a traced run)."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Finding, Rule, Severity
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StateTensor
from stayfinite.rules.evidence import at, births_by_weight, tensors

_RUNNING = ("running_mean", "running_var", "ema", "shadow", "avg", "momentum")


class KeptStatePoisoned(Rule[FailedStep]):
    """Moments, buffers or averages hold NaN or Inf although the weights are finite, or from an earlier step.

    ## What it finds
    Optimizer moments, batch norm statistics or averaged weights that are not finite at the end of a step or run
    whose parameters are finite; and steps whose first bad value was read from such state.

    ## Why it is bad
    An average never forgets a NaN: 0.9 * NaN + 0.1 * w is NaN for ever. The training curve recovers, and what is
    evaluated, saved or used for the next update does not.

    ## Example
    The model is reloaded after a bad step, its EMA copy is not

    ## The fix
    Check before every update of an average or buffer, and restore all state together: weights, moments, buffers,
    averages. Copy a poisoned average from the live model.

    ## The popular fix that does not work
    Restoring the weights alone, or not saving while the loss is NaN.

    ## References
    ultralytics/ultralytics#24986
    """

    code = "STA020"
    name = "kept-state-poisoned"
    cause = "STATE_POISONED"
    severity = Severity.ERROR

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for birth, weight in births_by_weight(subject):
            held = next((o for o in (birth.output, *birth.operands) if o is not None and not o.finite), None)
            if birth.transition != "outside" or held is None:
                continue
            trained = subject.step > 0 or any(optimizer.steps for optimizer in subject.optimizers)
            if held.origin in ("parameter", "buffer", "state") and trained and held.summary.nan:
                yield self.finding(
                    f"{held.origin} {held.name or 'tensor'} held {held.summary.nan} NaN before the step began",
                    fix="restore weights, moments, buffers and averages together from a verified copy",
                    evidence={"inputs": tensors(held)},
                    confidence=0.85 * weight,
                    **at(birth),
                )
        bad = [tensor for tensor in subject.state if _counts(tensor)]
        kept = [tensor for tensor in bad if tensor.owner not in ("parameter", "gradient")]
        if not kept:
            return
        weights_bad = any(tensor.owner == "parameter" for tensor in bad)
        restored = any(load.kind == "module" and load.step >= subject.step for load in subject.loads)
        if weights_bad and subject.births and not restored:
            return  # everything is bad, and the birth says why
        first = kept[0]
        yield self.finding(
            f"{first.owner} {first.name} holds {first.nan} NaN and {first.inf} Inf"
            + ("" if weights_bad else " while the weights are finite")
            + (f", and {len(kept) - 1} more" if len(kept) > 1 else ""),
            fix="check before each update of it, and restore weights, moments, buffers and averages together",
            evidence={
                "tensors": [{"owner": t.owner, "name": t.name, "nan": t.nan, "inf": t.inf} for t in kept[:8]]
            },
            confidence=0.5 if weights_bad else (0.95 if _went_on(subject) else 0.7),
            file=first.place.file,
            line=first.place.line,
        )


def _went_on(step: FailedStep) -> bool:
    """Training went on after the failing step, with finite weights: only the kept state is still bad."""
    return step.complete or any(optimizer.steps > step.step + 1 for optimizer in step.optimizers)


def _counts(tensor: StateTensor) -> bool:
    """A buffer of -inf is a mask; a running statistic of Inf is not."""
    if tensor.owner != "buffer":
        return bool(tensor.nan or tensor.inf)
    return bool(tensor.nan) or (bool(tensor.inf) and any(name in tensor.name for name in _RUNNING))
