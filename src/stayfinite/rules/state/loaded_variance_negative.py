"""STA045: a loaded running variance below zero."""

from __future__ import annotations

from collections.abc import Iterator

from stayfinite.findings import Depth, Finding, Rule, Severity
from stayfinite.findings.mechanism.kind import Kind
from stayfinite.findings.subjects.failed_step import FailedStep

_FIX = (
    "load a checkpoint that `stayfinite scan` calls healthy, or reset_running_stats() and some training batches before "
    "the next evaluation"
)


class LoadedVarianceNegative(Rule[FailedStep]):
    """The state that was loaded holds a running variance of a batch norm that is negative.

    ## What it finds
    `load_state_dict` of a model whose `running_var` is below -eps somewhere: in a step in which a batch norm then took
    its root, or in a run that was otherwise without a failure.

    ## Why it is bad
    In evaluation a batch norm divides by `sqrt(running_var + eps)`: every value of that channel is NaN. In training it
    uses the variance of the batch, so the training loss shows nothing, while validation, or a teacher in `eval()`, is
    NaN.

    ## Example
    An average of two checkpoints with a negative weight; a flipped sign bit in a copied file

    ## The fix
    Load another checkpoint, or `reset_running_stats()` and let some training batches pass before the next evaluation.

    ## The popular fix that does not work
    Evaluating in training mode: each sample then depends on the others of its batch.

    ## References
    torch documentation, torch.nn.BatchNorm2d
    """

    code = "STA045"
    name = "loaded-variance-negative"
    cause = "CHECKPOINT_CORRUPT"
    severity = Severity.ERROR
    more_specific_than = ("NUM013",)

    def check(self, subject: FailedStep) -> Iterator[Finding]:
        first = subject.judged[0] if subject.judged else None
        met = first is not None and first.how.kind is Kind.ROOT_OF_NEGATIVE and "batch_norm" in first.birth.op
        if not (met or subject.run.complete):
            return
        for load in subject.run.loads:
            if not load.negative:
                continue
            name, lowest = min(load.negative, key=lambda held: held[1])
            others = len(load.negative) - 1
            yield self.finding(
                f"the {load.kind} state that was loaded holds a running variance of {lowest:.3g} in {name}"
                + (f", and negative ones in {others} more" if others else "")
                + ("" if met else ": in evaluation its batch norm takes the root of a negative number"),
                fix=_FIX,
                evidence={"tensors": dict(load.negative)},
                depth=Depth.UPSTREAM,
                place=load.place,
            )
