"""STA011: state that outlives a step is not finite."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep
from stayfinite.findings.subjects.run_record import StateTensor
from stayfinite.rules.evidence import judged, told

_RUNNING = ("running_mean", "running_var", "ema", "shadow", "avg", "momentum")
_FIX = "check it before each update, and restore weights, moments, buffers and averages together from a good copy"

_FIX_OF_THE_BEGIN = (
    "initialise it explicitly, or repair what was written into it: no copy of it was ever good"
)

_WORDS = {"state": "optimizer state"}


class StatePoisoned(Rule[FailedStep]):
    """Parameters, moments, buffers or averages that outlive the step hold NaN or Inf.

    ## What it finds
    Non-finite values in any kept state when a step is refused or a run ends: parameters, optimizer moments, buffers
    such as batch norm's running statistics, and EMA weights. State that went bad in the very step whose birth is
    known is named after that birth; state that is still bad after the script dropped the step is the failure
    itself.

    ## Why it is bad
    Every later step starts from it, so skipping batches cannot help. The guard rolls back to the last verified
    copy of everything.

    ## Example
    A script that skips the step when the loss is NaN, after the forward pass has already put NaN into
    `running_mean`.

    ## The fix
    Restore all state together from a verified copy: weights, moments, buffers, averages.

    ## The popular fix that does not work
    Restoring the weights alone: poisoned moments make them NaN again at the next step.

    ## References
    ultralytics/ultralytics#24986
    """

    code = "STA011"
    name = "state-poisoned"
    cause = "STATE_POISONED"
    severity = Severity.ERROR
    more_specific_than = ("RUN010", "RUN001")  # where the failure is of the state alone

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        for born in judged(subject, Kind.CAME_IN):
            held = born.how.operand
            trained = subject.step > 0 or any(optimizer.steps for optimizer in subject.run.optimizers)
            if (
                held is not None
                and born.how.word in ("parameter", "buffer", "state")
                and trained
                and held.summary.nan
            ):
                owner = _WORDS.get(born.how.word, born.how.word)
                yield self.finding(
                    f"{owner} {held.name or 'tensor'} held {held.summary.nan} NaN before the step began",
                    fix=_FIX,
                    **told(born),
                )
        bad = [tensor for tensor in subject.state if _counts(tensor) and not _was_loaded(subject, tensor)]
        kept = [tensor for tensor in bad if tensor.owner not in ("parameter", "gradient")]
        weights_bad = any(tensor.owner == "parameter" for tensor in bad)
        any_weight_bad = any(tensor.owner == "parameter" and _counts(tensor) for tensor in subject.state)
        if subject.bad_update or not (kept or (weights_bad and not subject.births)):
            return  # a bad update is told by STA012
        # A load before the very first step is no repair of it.
        restored = any(
            load.kind == "module" and load.step >= max(subject.step, 1) for load in subject.run.loads
        )
        if weights_bad and subject.births and not restored:
            return  # everything is bad, and the birth says why
        first = (kept or bad)[0]
        # The script dropped the step and went on: what failed is the state alone.
        itself = not weights_bad and _went_on(subject)
        known = subject.run.optimizers
        from_the_begin = weights_bad and bool(known) and not any(optimizer.steps for optimizer in known)
        yield self.finding(
            f"{first.owner} {first.name} holds {first.nan} NaN and {first.inf} Inf"
            + ("" if any_weight_bad else " while the weights are finite")
            + (f", and {len(bad) - 1} more" if len(bad) > 1 else "")
            + (", and no update has been made yet" if from_the_begin else ""),
            fix=_FIX_OF_THE_BEGIN if from_the_begin else _FIX,
            evidence={
                "tensors": [{"owner": t.owner, "name": t.name, "nan": t.nan, "inf": t.inf} for t in bad[:8]]
            },
            # A script that puts back its weights alone has nothing else to blame.
            depth=Depth.FIRST
            if itself and restored
            else Depth.UPSTREAM
            if itself
            else Depth.CONSEQUENCE
            if subject.births
            else Depth.RUN,
            place=first.place,
        )


def _went_on(step: FailedStep) -> bool:
    """Training went on after the failing step, with finite weights: only the kept state is still bad."""
    return step.run.complete or any(optimizer.steps > step.step + 1 for optimizer in step.run.optimizers)


def _was_loaded(step: FailedStep, tensor: StateTensor) -> bool:
    """It came with a checkpoint: STA032 names the file, and nothing here made it."""
    loaded = (name for load in step.run.loads if load.kind == "module" for name in load.nonfinite)
    return tensor.owner in ("parameter", "buffer", "average") and any(
        tensor.name == name or tensor.name.endswith(f".{name}") for name in loaded
    )


def _counts(tensor: StateTensor) -> bool:
    """A buffer of -inf is a mask; a running statistic of Inf is not."""
    if tensor.owner != "buffer":
        return bool(tensor.nan or tensor.inf)
    return bool(tensor.nan) or (bool(tensor.inf) and any(name in tensor.name for name in _RUNNING))
